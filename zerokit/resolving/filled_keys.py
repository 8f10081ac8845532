"""The table of which argument or rule fills which key of a ds_config.

Source: `HfTrainerDeepSpeedConfig` (transformers 5.23), `DeepSpeedPlugin` and
`Accelerator._prepare_deepspeed` (accelerate 1.15); tests compare the table with the real functions. The
Trainer goes through accelerate, and so fills whatever accelerate fills. accelerate raises ValueError for
every "auto" that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.choices import Target
from zerokit.config.base import AUTO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.documents import KeyPath, split_dotted
from zerokit.hardware.cluster import Cluster
from zerokit.resolving.auto_word import DEEPSPEEDS_OWN_WORD
from zerokit.resolving.run import Run

PROCESS = "transformers integrations/deepspeed.py, trainer_config_process"
FINALIZE = "transformers integrations/deepspeed.py, trainer_config_finalize"
PLUGIN = "accelerate utils/dataclasses.py, DeepSpeedPlugin.__post_init__"
PRECISION = "accelerate utils/dataclasses.py, set_mixed_precision"
PREPARE = "accelerate accelerator.py, _prepare_deepspeed"


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
    """For a parameter of `scheduler`: those in which its absence loses the argument."""

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


def _argument(name: str, *arguments: str, accelerate: Source | None = None, **more: Any) -> FilledKey:
    """A key with the same meaning as arguments of the Trainer, which `fill_match` compares."""
    given = {"other": "refused", "adopted": True, "lost": True, **more}
    return FilledKey(name, Source(PROCESS, arguments), accelerate, **given)


def _precision(name: str) -> FilledKey:
    names = (name, f"{name}_full_eval")
    source = Source(PROCESS, names, makes=lambda run: any(run.arguments[one] for one in names))
    other = Source(
        PRECISION,
        ("mixed_precision",),
        "Accelerator",
        makes=lambda run: run.arguments.mixed_precision == name,
    )
    # Absent, accelerate adds the section.
    return FilledKey(f"{name}.enabled", source, other, other="refused", adopted=True)


def _size(key: str, rule: SizeRule) -> FilledKey:
    source, last = Source(FINALIZE, size=rule), Source(PREPARE, size=rule)
    return FilledKey(f"zero_optimization.{key}", source, last)


def _unset(name: str, value: Any) -> FilledKey:
    """What accelerate's plugin reads from Python or the environment, which set nothing where there is a
    file."""
    source = Source(PLUGIN, makes=value, note="accelerate, which has no other setting")
    return FilledKey(f"zero_optimization.{name}", None, source)


def _dummy(of: str, *arguments: str, **more: Any) -> Source:
    return Source(PREPARE, arguments, of, **more)


def _share_of_steps(run: Run) -> Any:
    """`DummyScheduler.total_num_steps` divided by the ranks; without it accelerate leaves the word."""
    total = run.arguments["total_num_steps"]
    return AUTO if total is None else math.ceil(total / run.world_size)


_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps")
_WARMUPS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")

FILLED: Mapping[str, FilledKey] = {
    filled.name: filled
    for filled in (
        _argument(MICRO, _BATCH[0], added=True, accelerate=_dummy("the data loader", "batch_size")),
        _argument(STEPS, _BATCH[1], added=True, accelerate=_dummy("Accelerator", _BATCH[1])),
        FilledKey(
            TRAIN,
            Source(
                PROCESS,
                _BATCH,
                makes=lambda run: run.world_size * math.prod(run.arguments[name] for name in _BATCH),
                note="multiplied with the number of GPUs",
            ),
            # Made of the config's own numbers: `frontends.py`.
            Source(PREPARE, note="micro batch x accumulation x ranks"),
            other="refused",
        ),
        _argument(
            "gradient_clipping",
            "max_grad_norm",
            added=True,
            accelerate=Source(PREPARE, makes=1.0, note="accelerate's own default"),
        ),
        _precision("bf16"),
        _precision("fp16"),
        _argument("optimizer.params.lr", "learning_rate", accelerate=_dummy("DummyOptim", "lr")),
        _argument("optimizer.params.betas", "adam_beta1", "adam_beta2"),
        _argument("optimizer.params.eps", "adam_epsilon"),
        _argument(
            "optimizer.params.weight_decay", "weight_decay", accelerate=_dummy("DummyOptim", "weight_decay")
        ),
        FilledKey(
            "scheduler.params.warmup_min_lr",
            Source(PROCESS, makes=0, note="the Trainer writes 0"),
            Source(PREPARE, makes=0, note="accelerate writes 0"),
        ),
        # Absent, WarmupLR takes the optimizer's rate; only WarmupDecayLR has a number of its own.
        _argument(
            "scheduler.params.warmup_max_lr",
            "learning_rate",
            schedules=("WarmupDecayLR",),
            accelerate=_dummy("DummyOptim", "lr"),
        ),
        *(_size(key, rule) for key, rule in SIZE_RULES.items()),
        FilledKey(
            "scheduler.params.total_num_steps",
            Source(
                FINALIZE,
                ("max_steps",),
                makes=lambda run: run.arguments.num_training_steps(),
                note="or the steps of all epochs, which the data decide",
            ),
            _dummy("DummyScheduler", "total_num_steps", makes=_share_of_steps, note="divided by the ranks"),
            other="refused",
        ),
        FilledKey(
            "scheduler.params.warmup_num_steps",
            Source(
                FINALIZE,
                ("warmup_steps",),
                makes=lambda run: run.arguments.warmup_steps(),
                note="at least 1; below 1 a share of all steps",
            ),
            _dummy(
                "DummyScheduler",
                "warmup_num_steps",
                makes=lambda run: max(1, run.arguments["warmup_num_steps"]),
                note="at least 1",
            ),
            other="refused",
            adopted=True,
            lost=True,
            schedules=_WARMUPS,
        ),
        _unset("stage", 2),
        _unset("offload_optimizer.device", "none"),
        _unset("offload_optimizer.nvme_path", "none"),
        _unset("offload_param.device", "none"),
        _unset("offload_param.nvme_path", "none"),
        _unset("stage3_gather_16bit_weights_on_model_save", False),
        FilledKey(
            "steps_per_print",
            None,
            Source(PLUGIN, makes=math.inf, note="accelerate, so that DeepSpeed prints nothing"),
            other="replaced",
        ),
    )
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
