"""Every final value of a ds_config, and where it comes from.

`frontends.py` does what the target does before `DeepSpeedConfig` is made. Then DeepSpeed's defaults apply,
and the batch sizes that it computes. A test compares both with the real functions.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN, computed_batch_sizes
from zerokit.config.conditions import ConfigView
from zerokit.config.key_index import canonical
from zerokit.config.load import check_ds_config, is_passed_over, load_ds_config
from zerokit.config.normal_form import RENAMED, normal_form, refused_together, without_comments
from zerokit.config.sections import DeepSpeedConfig
from zerokit.config.unused_keys import unused_keys
from zerokit.documents import Document, KeyPath, dotted, leaves
from zerokit.errors import ConfigError
from zerokit.resolving.contradictions import resolve_for_trainer
from zerokit.resolving.filling import Filling, Lost, Origin, Refused
from zerokit.resolving.frontends import as_accelerate, as_deepspeed, as_the_trainer
from zerokit.resolving.run import Run
from zerokit.units import quantity

__all__ = ["Lost", "Origin", "Refused", "Resolution", "Value", "resolve", "resolve_settled"]

_NOT_ONLY_DATA_PARALLEL = ("pipeline", "expert_parallel", "data_parallel_size")


@dataclass(frozen=True)
class Value:
    """One value that DeepSpeed reads."""

    path: KeyPath
    value: Any
    origin: Origin
    detail: str
    """Where the value comes from, in words."""
    line: int | None = None
    """In the file, for `file` and `auto`."""
    known: bool = True
    """False where the value depends on what was not given; it is "auto" then."""


@dataclass(frozen=True, repr=False)
class Resolution:
    """A ds_config as DeepSpeed gets it."""

    values: tuple[Value, ...]
    """In the order of DeepSpeed's sections; defaults included."""
    lost: tuple[Lost, ...]
    """What is ignored silently."""
    refused: tuple[Refused, ...]
    """Why the target will not hand it on, or DeepSpeed cannot read it. What DeepSpeed refuses by rules of its
    own is known to :func:`zerokit.lint.refusals.with_refusals`."""
    config: dict[str, Any]
    """What the target hands to DeepSpeed. An "auto" in it depends on what was not given."""
    loaded: DeepSpeedConfig | None
    """The same as DeepSpeed reads it; None if it cannot."""

    def __repr__(self) -> str:
        """How many values there are."""
        refused = ", refused" if self.refused else ""
        return f"<{type(self).__name__}: {quantity(len(self.values), 'value')}{refused}>"

    def __getitem__(self, name: str) -> Any:
        """The value at a dotted path. KeyError if there is no such value."""
        for value in self.values:
            if dotted(value.path) == name:
                return value.value
        raise KeyError(name)


def resolve(document: Document, run: Run, *, added: Mapping[str, str] | None = None) -> Resolution:
    """Resolve a valid ds_config.

    Args:
        added: dotted paths whose values zerokit wrote before, with the reason.

    Raises:
        ConfigError: the config is not valid.
    """
    load_ds_config(document, past_ignored=True)
    filling = Filling(document, run, added or {})
    for finding in check_ds_config(document):
        if is_passed_over(finding, document):
            filling.lose(dotted(finding.path), f"DeepSpeed does not read it. {finding.hint}")
    target = run.target
    if target == "trainer":
        as_the_trainer(filling)
    elif target == "accelerate":
        as_accelerate(filling)
    else:
        as_deepspeed(filling)
    return _finish(filling)


def resolve_settled(
    document: Document, run: Run, *, default_precision: str = "bf16", written: Document | None = None
) -> Resolution:
    """Resolve a ds_config as ``zerokit train`` runs it: settled with the recipe first.

    With a recipe and its model, the buffers of parameters on NVMe are sized to it.

    Args:
        document: the config; it must load.
        run: what it is resolved for; the arguments that were `given` are those that the recipe sets.
        default_precision: what the GPUs have, where neither side names a precision.
        written: the config before the recipe wrote its optimizer into it, where that is not `document`.

    Raises:
        ConfigError: the config is not valid, or contradicts the recipe.
    """
    before = load_ds_config(document, past_ignored=True).dump()
    settled = resolve_for_trainer(
        before,
        run.given,
        default_precision=default_precision,
        world_size=run.world_size,
        parallelism=run.parallelism,
        ds_where=document.name,
        where=run.where,
    )
    sized = settled
    if run.recipe is not None and run.model is not None:
        sized = settled.with_nvme_buffers(run.model, run.world_size)
    by_hand = dict(leaves(before if written is None else load_ds_config(written, past_ignored=True).dump()))
    added = {
        dotted(path): "zerokit train, as the recipe or the GPUs say"
        for path, value in leaves(settled.ds_config)
        if by_hand.get(path) != value
    }
    as_settled = dict(leaves(settled.ds_config))
    for path, _ in leaves(sized.ds_config):
        if path not in as_settled:
            added[dotted(path)] = "zerokit train, by the model"

    def place(name: str) -> str:
        return run.where(name) if name in run.given else f"{name}, settled by zerokit train"

    positions = Document(sized.ds_config, document.name, document.positions)
    settled_run = replace(run, target="trainer", given=settled.training, where=place)
    return resolve(positions, settled_run, added=added)


def _finish(filling: Filling) -> Resolution:
    """DeepSpeed's own part: batch sizes, defaults, and what does nothing."""
    config = filling.config
    passed = {key: value for key, value in config.items() if key != "steps_per_print"}
    if {"bf16", "bfloat16"} <= passed.keys():
        filling.lose("bfloat16", "DeepSpeed reads the section bf16, which accelerate adds")
        del passed["bfloat16"]
    if config.get("steps_per_print") not in (None, math.inf):
        passed["steps_per_print"] = config["steps_per_print"]
    computed = _batch_sizes(filling)
    try:
        loaded = load_ds_config(passed)
    except ConfigError as error:
        where = error.where or ""
        filling.refuse(where, f"{where}: {error.message}" if where else error.message)
        values = tuple(_values(filling, config, {}))
        return Resolution(values, tuple(filling.lost), tuple(filling.refused), config, None)
    for path, message in refused_together(loaded):
        filling.refuse(dotted(path), message)
    for idle in unused_keys(ConfigView(loaded, target=filling.arguments.target)):
        name = dotted(idle.path)
        if not idle.harmless and name not in {lost.name for lost in filling.lost}:
            filling.lose(name, f"it {idle.reason}")
    normal = normal_form(loaded)
    if config.get("steps_per_print") == math.inf:
        normal["steps_per_print"] = math.inf
    values = tuple(_values(filling, normal, computed))
    return Resolution(values, tuple(filling.lost), tuple(dict.fromkeys(filling.refused)), config, loaded)


def _batch_sizes(filling: Filling) -> dict[str, int]:
    config = filling.config
    own_groups = filling.arguments.target == "deepspeed" and config.get("tensor_parallel")
    if own_groups or any(config.get(key) for key in _NOT_ONLY_DATA_PARALLEL):
        return {}
    if any(config.get(key) == AUTO for key in (TRAIN, MICRO, STEPS)):
        return {}
    shared = filling.run.batch_group(config.get("sequence_parallel_size"))
    ranks, left = divmod(filling.run.world_size, shared)
    if left:
        if filling.run.parallelism.sequence == 1:  # otherwise the script's sizes are wrong, not the ds_config
            why = f"{filling.run.world_size} ranks do not divide into sequences of {shared}"
            filling.refuse("sequence_parallel_size", why)
        return {}
    computed, problem = computed_batch_sizes(config, ranks)
    if problem is not None:
        filling.refuse(TRAIN if config.get(TRAIN) is not None else "", problem)
    return computed


def _values(filling: Filling, normal: Mapping[str, Any], computed: Mapping[str, int]) -> Iterator[Value]:
    written = {canonical(path): path for path, _ in leaves(without_comments(filling.document.data))}
    for path in list(written):
        if path[:1] == (ZERO,) and len(path) == 2 and path[1] in RENAMED:
            written[(ZERO, RENAMED[str(path[1])])] = written[path]
    everything: dict[KeyPath, Any] = {(name,): value for name, value in computed.items()}
    everything |= dict(leaves(normal))
    for path, value in everything.items():
        name = dotted(path)
        source = written.get(path) or written.get(path[:2])
        line = None if source is None else filling.document.line(source)
        if name in filling.origins:
            origin, why, known = filling.origins[name]
            yield Value(path, value, origin, why, line if origin == "auto" else None, known)
        elif path[0] in computed:
            yield Value(path, value, "computed", "micro batch x accumulation steps x ranks")
        elif source is not None and source != path and path not in written:
            yield Value(path, value, "file", f"the old key {dotted(source)}", line)
        elif source is not None:
            yield Value(path, value, "file", filling.document.name, line)
        elif name == f"{ZERO}.overlap_comm":
            yield Value(path, value, "default", "true in stage 3 only")
        else:
            yield Value(path, value, "default", "DeepSpeed's default")
