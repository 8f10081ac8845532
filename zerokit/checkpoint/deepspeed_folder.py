"""What a folder of `DeepSpeedEngine.save_checkpoint` holds, read from the headers of its files."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.checkpoint.archive import Archive, Storage, StoredTensor, read_archive
from zerokit.checkpoint.masters import Shapes, masters_of_stage_1_and_2, masters_of_stage_3
from zerokit.checkpoint.step_folder import AGAIN, StepFolder, find_step_folder, read_step_folder
from zerokit.checkpoint.tensors import NamedTensor, joined, whole
from zerokit.documents import shown
from zerokit.errors import CheckpointError

States = Mapping[str, Any]
_RANK_IN_NAME = re.compile(r"zero_pp_rank_(\d+)_")
_MOST_RANKS = 1 << 20
_WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_checkpoint_wrapped_module)\.")
"""What torch.compile and wrappers of checkpointed blocks put into names; no model loads them."""


@dataclass(frozen=True)
class Facts:
    """What is known of a checkpoint before its tensors are put together."""

    folder: Path
    stage: int
    num_ranks: int
    """That saved it, each with its part of the optimizer."""
    step: int | None
    """Optimizer steps of the run, skipped ones included."""
    version: str | None
    """Of DeepSpeed."""
    dtype: str | None
    """In which the model computes."""
    universal: bool


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """A checkpoint of one step, complete by its headers."""

    facts: Facts
    files: Sequence[Path]
    storages: Sequence[Storage]
    """All of these files, moments of the optimizer included."""
    masters: Mapping[str, NamedTensor]
    """The weights of the optimizer, mostly float32; none of those that are not trained."""
    weights: Mapping[str, NamedTensor]
    """What the model computes with, as far as it is saved whole: all of it below stage 3, there buffers and
    what is not trained."""
    copies: Sequence[tuple[NamedTensor, NamedTensor]]
    """What two ranks have of the same buffer."""
    placeholders: Mapping[str, str]
    """The type in which the model has each parameter, also those that are divided."""
    aliases: Mapping[str, str]
    """Names of tied weights, and the name that has the tensor."""

    def dtype_of(self, name: str) -> str | None:
        """The type in which the model computes with a tensor."""
        weight = self.weights.get(name)
        return weight.dtype if weight is not None else self.placeholders.get(name)

    def tensors(self) -> dict[str, NamedTensor]:
        """Every tensor of the model once, by name: of the optimizer where it has it."""
        found = {**self.weights, **self.masters}
        return {
            name: found[name] for name in found if self.aliases.get(name, name) not in found.keys() - {name}
        }


def read_facts(path: Path) -> Facts:
    """What a checkpoint is, read from rank 0's files.

    Args:
        path: of a step, or of a run, whose newest one is taken.

    Raises:
        CheckpointError: it is none, or one of these files is damaged.
    """
    files = read_step_folder(find_step_folder(path))
    model = _model_states(read_archive(files.models[0]))
    first = next(iter(files.optimizers.values()), None)
    optimizer = _optimizer_states(read_archive(first)) if first is not None else {}
    with as_deepspeed_saves(files.folder):
        return _facts(files, model, optimizer)


def read_checkpoint(path: Path) -> DeepSpeedCheckpoint:
    """Read all of a checkpoint but the elements of its tensors.

    Args:
        path: as of :func:`read_facts`.

    Raises:
        CheckpointError: it is none, it is damaged, a file of a rank is missing, or of another step, rank or
            run, or it is of a kind that is not read.
    """
    saved = read_saved(path)
    with as_deepspeed_saves(saved.files.folder):
        return _put_together(saved)


@dataclass(frozen=True)
class Saved:
    """What the files of a step hold, of one run and one step, as DeepSpeed wrote it."""

    facts: Facts
    files: StepFolder
    archives: Mapping[Path, Archive]
    models: Sequence[States]
    """The model states, of each rank that has some."""
    optimizers: Sequence[States]
    """Those of ZeRO's optimizer, of each rank."""


def read_saved(path: Path) -> Saved:
    """As :func:`read_checkpoint`, before tensors are put together."""
    files = read_step_folder(find_step_folder(path))
    archives = {file: read_archive(file) for file in files.files}
    for archive in archives.values():
        _check_place(archive)
    models = [_model_states(archives[file]) for file in files.models.values()]
    optimizers = [_optimizer_states(archives[file]) for file in files.optimizers.values()]
    with as_deepspeed_saves(files.folder):
        facts = _facts(files, models[0], next(iter(optimizers), {}))
        _check_ranks(facts, files, models[0])
        _check_steps(files, models, optimizers)
    return Saved(facts, files, archives, models, optimizers)


@contextmanager
def as_deepspeed_saves(folder: Path) -> Iterator[None]:
    """Say of what is not there, or is something else, that it is.

    Raises:
        CheckpointError: it is so.
    """
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"lacks what DeepSpeed saves ({type(error).__name__}: {error})"
        raise CheckpointError(problem, where=shown(folder), hint=AGAIN) from None


def _put_together(saved: Saved) -> DeepSpeedCheckpoint:
    facts, files, archives = saved.facts, saved.files, saved.archives
    models, optimizers = saved.models, saved.optimizers
    first = models[0]
    masters: dict[str, NamedTensor] = {}
    shapes = shapes_of(first)
    if files.universal is not None:
        named = {name: shape for group in shapes for name, shape in group.items()}
        parts = {name: read_archive(files.universal / name / "fp32.pt") for name in named}
        masters = {name: _universal(name, named[name], parts[name].content) for name in named}
        archives = {**archives, **{archive.file: archive for archive in parts.values()}}
    elif optimizers:
        put = masters_of_stage_3 if facts.stage == 3 else masters_of_stage_1_and_2
        masters = {tensor.name: tensor for tensor in put(shapes, optimizers)}
    weights = dict(_saved_whole(first, facts.stage))
    for file in files.experts.values():
        experts = archives[file].content.items()
        weights |= {name: whole(name, one) for name, one in experts if isinstance(one, StoredTensor)}
    if facts.stage == 3:
        weights |= dict(_frozen(models))
    _check_experts(files, first)
    buffers = weights.keys() & set(first.get("buffer_names") or ())
    computed = {name: one for name, one in first["module"].items() if isinstance(one, StoredTensor)}
    tied = first.get("shared_params") or {}
    masters, weights = _unwrapped(masters), _unwrapped(weights)
    _check_shapes(masters, weights)
    return DeepSpeedCheckpoint(
        facts,
        list(archives),
        [storage for archive in archives.values() for storage in archive.storages],
        masters,
        weights,
        [
            (weights[_WRAPPERS.sub("", name)], whole(name, other["module"][name]))
            for other in models[1:]
            for name in buffers
        ],
        {_WRAPPERS.sub("", name): one.dtype for name, one in computed.items()},
        {_WRAPPERS.sub("", name): _WRAPPERS.sub("", of) for name, of in tied.items()},
    )


def shapes_of(model: States) -> Shapes:
    """The shapes of the parameters that the optimizer has.

    Raises:
        ValueError: they are none.
    """
    shapes: Shapes = model.get("param_shapes") or []
    for name, shape in (item for group in shapes for item in group.items()):
        if "/" in name or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"a parameter '{name}' of shape {shape}")
    return shapes


def _check_shapes(masters: Mapping[str, NamedTensor], weights: Mapping[str, NamedTensor]) -> None:
    """See that the optimizer's weights have the shapes of the model's."""
    for name, weight in weights.items():
        if name in masters and weight.shape != masters[name].shape:
            raise CheckpointError(
                f"has '{name}' of shape {list(weight.shape)}, and the optimizer of "
                f"{list(masters[name].shape)}: they are of different models",
                where=shown(weight.pieces[0].storage.file),
                hint=AGAIN,
            )


def _unwrapped(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    names = {name: _WRAPPERS.sub("", name) for name in tensors}
    return {names[name]: tensor.named(names[name]) for name, tensor in tensors.items()}


def _model_states(archive: Archive) -> States:
    content = archive.content
    if not isinstance(content, Mapping) or not isinstance(content.get("module"), Mapping):
        raise CheckpointError("holds no model states of DeepSpeed's", where=shown(archive.file), hint=AGAIN)
    if content.get("ds_autoep_layers") or content.get("autoep_layers"):
        raise CheckpointError(
            "is of DeepSpeed's AutoEP, whose experts zerokit does not put together",
            where=shown(archive.file),
            hint="Convert it with DeepSpeed's ds_to_universal.py",
        )
    return content


def _optimizer_states(archive: Archive) -> States:
    content = archive.content
    states = content.get("optimizer_state_dict") if isinstance(content, Mapping) else None
    if not isinstance(states, Mapping) or "partition_count" not in states:
        raise CheckpointError("holds no optimizer states of ZeRO's", where=shown(archive.file), hint=AGAIN)
    return states


def _facts(files: StepFolder, model: States, optimizer: States) -> Facts:
    # BF16_Optimizer divides as stage 1 does, and says nothing of it.
    stage = getattr(optimizer.get("zero_stage"), "arguments", (optimizer.get("zero_stage"),))[0]
    if not isinstance(stage, int):
        divided = "zero_pp_rank" in files.models[0].name
        stage = 3 if divided else 1 if optimizer or model.get("param_shapes") is not None else 0
    counts = optimizer.get("partition_count") if optimizer else model.get("dp_world_size")
    num_ranks = max(counts, default=1) if isinstance(counts, list | tuple) else counts
    if isinstance(num_ranks, int) and num_ranks > _MOST_RANKS:
        raise ValueError(f"{num_ranks:,} ranks")
    tensors = (one for one in model["module"].values() if isinstance(one, StoredTensor))
    floats = (one.dtype for one in tensors if one.is_float)
    version, step = model.get("ds_version"), model.get("global_steps")
    return Facts(
        files.folder,
        stage,
        num_ranks if isinstance(num_ranks, int) and num_ranks > 0 else 1,
        step if isinstance(step, int) else None,
        version if isinstance(version, str) else None,
        next(floats, None),
        files.universal is not None,
    )


def _check_place(archive: Archive) -> None:
    """See that a file has the name of the rank that wrote it: archives remember it."""
    wrote, is_of = (_RANK_IN_NAME.search(name) for name in (f"{archive.saved_as}_", archive.file.name))
    if wrote is not None and (is_of is None or is_of[1] != wrote[1]):
        raise CheckpointError(
            f"was saved as '{archive.saved_as}': the files of two ranks have changed places",
            where=shown(archive.file),
            hint="Give each its own name again",
        )


def _check_ranks(facts: Facts, files: StepFolder, model: States) -> None:
    saved_by = model.get("dp_world_size")
    if files.universal is not None:
        return
    if facts.stage and isinstance(saved_by, int) and files.optimizers and saved_by != facts.num_ranks:
        raise CheckpointError(
            f"is of a run of {saved_by:,} ranks, but the optimizer's parts are of {facts.num_ranks:,}",
            where=shown(files.models[0]),
            hint="Two runs lie in one folder, or it is of MiCS, which zerokit does not put together",
        )
    for what, found, wanted in (
        ("optimizer", files.optimizers, facts.num_ranks if facts.stage else 0),
        ("model", files.models, facts.num_ranks if facts.stage == 3 else 1),
    ):
        missing = sorted(set(range(wanted)) - set(found))
        if missing:
            listed = ", ".join(map(str, missing[:8])) + (" ..." if len(missing) > 8 else "")
            raise CheckpointError(
                f"lacks the {what} states of {len(missing):,} of {wanted:,} ranks: {listed}",
                where=shown(facts.folder),
                hint="Copy them from the machines that saved them, or take an earlier checkpoint",
            )
        foreign = next((file for rank, file in found.items() if rank >= wanted), None)
        if foreign is not None:
            raise CheckpointError(
                f"is of a rank that a run of {facts.num_ranks:,} ranks has not: two runs lie in one folder",
                where=shown(foreign),
                hint="Remove the files of the other run",
            )


def _check_steps(files: StepFolder, models: Sequence[States], optimizers: Sequence[States]) -> None:
    """See that all ranks are at one step."""
    for of, steps in (
        (files.models, [states.get("global_steps") for states in models]),
        (files.optimizers, [_optimizer_step(states) for states in optimizers]),
    ):
        for file, step in zip(of.values(), steps, strict=True):
            if step != steps[0]:
                raise CheckpointError(
                    f"is of step {step}, and rank 0's file of step {steps[0]}: two checkpoints were mixed",
                    where=shown(file),
                    hint="Take another one",
                )
    done, taken = models[0].get("global_steps"), _optimizer_step(optimizers[0]) if optimizers else None
    if isinstance(done, int) and taken is not None and taken > done:
        raise CheckpointError(
            f"is of step {taken}, and the model of step {done}: two checkpoints were mixed",
            where=shown(files.optimizers[0]),
            hint="Take another one",
        )


def _optimizer_step(states: States) -> int | None:
    """The steps that the optimizer of torch, or of DeepSpeed, has counted."""
    inner = states.get("base_optimizer_state", states.get("optimizer_state_dict"))
    if not isinstance(inner, Mapping):
        return None
    of_parameters = inner.get("state")
    groups = inner.get("param_groups")
    first: Any = next(iter(of_parameters.values()), {}) if isinstance(of_parameters, Mapping) else {}
    group = groups[0] if isinstance(groups, list) and groups else {}
    step = next((one["step"] for one in (first, group) if isinstance(one, Mapping) and "step" in one), None)
    if isinstance(step, StoredTensor) and step.numel == 1 and step.dtype == "float32":
        with step.file.open("rb") as opened:
            opened.seek(step.storage.offset + step.offset)
            step = struct.unpack("<f", opened.read(4))[0]
    return int(step) if isinstance(step, int | float) and math.isfinite(step) else None


def _saved_whole(model: States, stage: int) -> Iterator[tuple[str, NamedTensor]]:
    """The model's own tensors; under stage 3 those that are not divided, which are its buffers."""
    buffers = set(model.get("buffer_names") or ())
    for name, tensor in model["module"].items():
        if isinstance(tensor, StoredTensor) and (stage < 3 or name in buffers):
            yield name, whole(name, tensor)


def _frozen(models: Sequence[States]) -> Iterator[tuple[str, NamedTensor]]:
    """Parameters that are not trained, of which every rank has a part."""
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        yield name, joined(name, shape, [model["frozen_param_fragments"][name] for model in models])


def _check_experts(files: StepFolder, model: States) -> None:
    for layer, experts in enumerate(model.get("num_experts") or ()):
        missing = sorted(
            set(range(min(experts, _MOST_RANKS))) - {number for of, number in files.experts if of == layer}
        )
        if missing:
            raise CheckpointError(
                f"lacks {len(missing):,} of the {experts:,} experts of mixture {layer}, such as {missing[0]}",
                where=shown(files.folder),
                hint="Copy them from the machines that saved them, or take an earlier checkpoint",
            )


def _universal(name: str, shape: Sequence[int], content: Any) -> NamedTensor:
    tensor = content["param"] if isinstance(content, Mapping) else content
    return joined(name, shape, [tensor])
