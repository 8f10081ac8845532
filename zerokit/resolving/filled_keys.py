"""The table of which argument or rule fills which key of a ds_config.

Source: `HfTrainerDeepSpeedConfig` (transformers 5.23), `DeepSpeedPlugin` and
`Accelerator._prepare_deepspeed` (accelerate 1.15); tests compare the table with the real functions. The
Trainer goes through accelerate, and so fills whatever accelerate fills. accelerate raises ValueError for
every "auto" that is left.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.choices import Target
from zerokit.config.base import AUTO
from zerokit.documents import KeyPath, split_dotted
from zerokit.hardware.cluster import Cluster
from zerokit.resolving.auto_word import DEEPSPEEDS_OWN_WORD
from zerokit.resolving.run import Run
from zerokit.tables import table_of

_TABLE = table_of(__file__)
_STEPS: Mapping[str, str] = _TABLE["steps"]
PROCESS, FINALIZE, PLUGIN, PRECISION, PREPARE = _STEPS.values()
"""The functions that fill keys, in the order of `filled_keys.json`."""
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True)
class SizeRule:
    """How the Trainer and accelerate make a number of elements from the model's hidden size."""

    formula: str
    elements: Callable[[int], int]
    stage_3_only: bool
    """Whether the Trainer fills it in stage 3 only; accelerate does in every stage."""


SIZE_RULES: Mapping[str, SizeRule] = {
    "reduce_bucket_size": SizeRule("hidden²", lambda hidden: hidden * hidden, False),
    "stage3_prefetch_bucket_size": SizeRule("0.9 hidden²", lambda hidden: int(0.9 * hidden * hidden), True),
    "stage3_param_persistence_threshold": SizeRule("10 hidden", lambda hidden: 10 * hidden, True),
}
"""By the key in `zero_optimization`."""


@dataclass(frozen=True)
class Source:
    """From where one side takes the value of a key that is "auto"."""

    step: str
    """The function that fills it."""
    arguments: tuple[str, ...] = ()
    of: str = ""
    """Whose arguments they are, where it is not the Trainer."""
    makes: Any = None
    """The value, or a function of the run that computes it (None: not known yet). None: the arguments as they
    are."""
    note: str = ""
    """What becomes of the arguments."""
    size: SizeRule | None = None

    def value(self, run: Run) -> Any:
        """The value that is filled in; None where it is not known."""
        if self.size is not None:
            return None if run.hidden_size is None else self.size.elements(run.hidden_size)
        if callable(self.makes):
            return self.makes(run)
        given = [run.arguments[name] for name in self.arguments]
        return given if len(given) > 1 else given[0] if given else self.makes

    @property
    def words(self) -> str:
        """What the value is made of."""
        if self.size is not None:
            return f"{self.size.formula} of the model"
        arguments = " and ".join(self.arguments) + (f" of {self.of}" if self.of else "")
        return ", ".join(filter(None, (arguments, self.note)))

    def why(self, run: Run) -> str:
        """The same for one run: where the arguments were set."""
        if self.size is not None:
            known = run.hidden_size is not None
            return f"{self.size.formula}" + (
                f", of {run.hidden_size}" if known else " of the model, which is not given (--model)"
            )
        given = [name for name in self.arguments if name in run.arguments.given]
        origin = run.arguments.origin(*(given or self.arguments))
        return ", ".join(filter(None, (f"{self.of}: {origin}" if self.of else origin, self.note)))


@dataclass(frozen=True)
class FilledKey:
    """A key of the ds_config that the Trainer or accelerate fills where it is "auto"."""

    name: str
    """Dotted, as the file spells it: `bfloat16.enabled` is not filled."""
    trainer: Source | None = None
    """None: the Trainer leaves it to accelerate."""
    accelerate: Source | None = None
    """None: accelerate does not fill it, and refuses what the Trainer did not fill."""
    other: Literal["refused", "kept", "replaced"] = "kept"
    """What happens to another value: `fill_match` of the Trainer stops, it is kept, or it is silently
    overwritten."""
    adopted: bool = False
    """Whether ``zerokit train`` takes a value in the file over into the arguments, one to one."""
    added: bool = False
    """Whether ``zerokit train`` adds the key as "auto" where it is absent."""
    lost: bool = False
    """Whether the absence of the key loses the Trainer's argument."""
    schedules: tuple[str, ...] = ()
    """For a parameter of `scheduler`: those in which its absence loses the argument. WarmupLR without a rate, for
    one, takes the optimizer's."""

    @property
    def path(self) -> tuple[str, ...]:
        return split_dotted(self.name)

    def source(self, target: Target) -> Source | None:
        """Who fills it in the end under a target."""
        if target == "deepspeed":
            return None
        return (target == "trainer" and self.trainer) or self.accelerate

    def as_arguments(self, written: Any) -> dict[str, Any]:
        """The Trainer's arguments that a value in the file corresponds to."""
        assert self.trainer is not None
        values = written if isinstance(written, list) else [written]
        return dict(zip(self.trainer.arguments, values, strict=False))

    def conflicts(self, written: Any, given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The arguments among `given` that a value in the file contradicts, with the file's value."""
        assert self.trainer is not None
        for name, value in self.as_arguments(written).items():
            wanted = given.get(name, value)
            if name in given and len(self.trainer.arguments) == 1:
                wanted = self.trainer.value(Run(target="trainer", cluster=Cluster(1), given=given))
            if value != wanted:
                yield name, value


def _share_of_steps(run: Run) -> Any:
    """`DummyScheduler.total_num_steps` divided by the ranks; without it accelerate leaves the word."""
    total = run.arguments["total_num_steps"]
    return AUTO if total is None else math.ceil(total / run.world_size)


_COMPUTED: Mapping[str, Callable[[Run], Any]] = {
    "train_batch_size": lambda run: run.world_size * math.prod(run.arguments[name] for name in _BATCH),
    "bf16": lambda run: any((run.arguments["bf16"], run.arguments["bf16_full_eval"])),
    "fp16": lambda run: any((run.arguments["fp16"], run.arguments["fp16_full_eval"])),
    "mixed bf16": lambda run: run.arguments.mixed_precision == "bf16",
    "mixed fp16": lambda run: run.arguments.mixed_precision == "fp16",
    "training steps": lambda run: run.arguments.num_training_steps(),
    "share of steps": _share_of_steps,
    "warmup steps": lambda run: run.arguments.warmup_steps(),
    "warmup_num_steps": lambda run: max(1, run.arguments["warmup_num_steps"]),
}
"""What rows of `filled_keys.json` compute."""


def _source(row: dict[str, Any] | None) -> Source | None:
    if row is None:
        return None
    step, size, computes = _STEPS[row.pop("step")], row.pop("size", None), row.pop("computes", None)
    arguments, makes = tuple(row.pop("arguments", ())), row.pop("makes", _COMPUTED.get(computes))
    return Source(step, arguments, makes=makes, size=SIZE_RULES.get(size), **row)


FILLED: Mapping[str, FilledKey] = {
    name: FilledKey(
        name,
        _source(row.pop("trainer", None)),
        _source(row.pop("accelerate", None)),
        schedules=tuple(row.pop("schedules", ())),
        **row,
    )
    for name, row in _TABLE["filled"].items()
}
"""By dotted name, in the order of filling as far as one value depends on another."""

FILLED_BY: Mapping[Target, frozenset[str]] = {
    "trainer": frozenset(FILLED),
    "accelerate": frozenset(name for name, filled in FILLED.items() if filled.accelerate is not None),
    "deepspeed": DEEPSPEEDS_OWN_WORD,
}
"""Dotted paths at which "auto" is good, by target."""

REPLACED_ARGUMENTS: Mapping[str, str] = {"optimizer": "optim", "scheduler": "lr_scheduler_type"}
"""A section of the ds_config -> the Trainer's argument that it replaces silently."""


def filled_in_words(path: KeyPath) -> Iterator[str]:
    """What "auto" becomes at a key, a sentence for each target."""
    name = ".".join(map(str, path))
    if name in DEEPSPEEDS_OWN_WORD:
        yield '"auto" is a word of DeepSpeed\'s own'
    filled = FILLED.get(name)
    if filled is None:
        return
    if filled.trainer is not None:
        insists = "; another value must say the same" if filled.other == "refused" else ""
        yield f'"auto" under the Trainer: {filled.trainer.words}{insists}'
    if filled.accelerate is not None:
        who = "accelerate" if filled.trainer is not None else "the Trainer and accelerate"
        source = filled.accelerate
        fixed = source.makes is not None and not callable(source.makes)
        value = f"{_shown(source.makes)} ({source.words})" if fixed else source.words
        replaced = ", in place of any other value" if filled.other == "replaced" else ""
        yield f'"auto" under {who}: {value}{replaced}'


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
