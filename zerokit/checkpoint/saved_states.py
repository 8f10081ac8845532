"""Reads the headers of all files of a step, and checks that they belong to one run and step."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.checkpoint.master_weights import Shapes
from zerokit.checkpoint.step_folder import AGAIN, StepFolder, find_step_folder, read_step_folders
from zerokit.checkpoint.torch_file import Archive, StoredTensor, check_shape, read_archive
from zerokit.errors import CheckpointError
from zerokit.garbage import paused_collection
from zerokit.units import quantity

StateDict = Mapping[str, Any]
_PLACES = re.compile(r"(zero_pp_rank|mp_rank|layer|model|expert)_(\d+)")
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})")
_WITHOUT_BF16_OPTIMIZER = (0, 17, 6), (0, 18, 4)
_FLOAT32 = ("fp32", "float32", "float", "torch.float32")
"""Names of float32 in a ds_config (runtime/config.py, `DtypeEnum`)."""
MOST_RANKS = 1 << 20


@dataclass(frozen=True)
class CheckpointInfo:
    """What is known of a checkpoint before its tensors are joined."""

    folder: Path
    stage: int
    num_ranks: int
    """Data-parallel ranks that saved it, each with its part of the optimizer."""
    step: int | None
    """Optimizer steps of the run, including skipped ones."""
    version: str | None
    """Release of DeepSpeed."""
    dtype: str | None
    """Type of the model."""
    universal: bool
    tensor_parallel: int
    """Tensor-parallel ranks."""
    pipeline_stages: int | None
    """None without a pipeline."""


@dataclass(frozen=True)
class SavedStates:
    """The contents of a step's files."""

    facts: CheckpointInfo
    files: StepFolder
    archives: Mapping[Path, Archive]
    models: Sequence[StateDict]
    """Model states of each rank that has some."""
    optimizers: Sequence[StateDict]
    """ZeRO optimizer states of each rank."""


def read_states(path: Path) -> list[SavedStates]:
    """Read the files of a step, for each model-parallel rank in order.

    Args:
        path: a step, or a run for its newest step.

    Raises:
        CheckpointError: it is no checkpoint, is damaged or of an unsupported kind; or a file of a rank is
            missing or belongs to another step, rank or run.
    """
    with paused_collection():
        found = [_read(files) for files in read_step_folders(find_step_folder(path))]
    first = found[0]
    for other in found[1:]:
        if other.facts.num_ranks != first.facts.num_ranks or other.facts.step != first.facts.step:
            raise CheckpointError(
                f"is of step {other.facts.step} of {quantity(other.facts.num_ranks, 'rank')}, and "
                f"{first.files.models[0].name} of step {first.facts.step} of {first.facts.num_ranks:,}",
                where=other.files.models[0],
                hint="Two checkpoints were mixed: use another one",
            )
    wanted = first.models[0].get("mp_world_size")
    if isinstance(wanted, int) and 1 < wanted != len(found):
        raise CheckpointError(
            f"is of {quantity(wanted, 'rank')} that divide the model, but has files of {len(found):,}",
            where=first.files.folder,
            hint=AGAIN,
        )
    return found


def _read(files: StepFolder) -> SavedStates:
    archives = {file: read_archive(file) for file in files.files}
    for archive in archives.values():
        _check_place(archive)
    models = [_model_states(archives[file], files) for file in files.models.values()]
    optimizers = [_optimizer_states(archives[file]) for file in files.optimizers.values()]
    with explain_format_errors(files.folder):
        if files.pipeline_stages is not None:
            models[0] = {**models[0], "module": _layers(files, archives)}
        facts = _facts(files, models[0], next(iter(optimizers), {}))
        _check_ranks(facts, files, models[0])
        _check_steps(files, models, optimizers)
    return SavedStates(facts, files, archives, models, optimizers)


def _layers(files: StepFolder, archives: Mapping[Path, Archive]) -> dict[str, Any]:
    """Tensors of a pipeline's layers, by their names in the pipeline."""
    return {
        f"{number}.{name}": one
        for number, file in files.layers.items()
        for name, one in archives[file].content.items()
    }


@contextmanager
def explain_format_errors(folder: Path) -> Iterator[None]:
    """Explain missing or wrong content of DeepSpeed's files.

    Raises:
        CheckpointError: content is missing or has another form.
    """
    try:
        yield
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"does not have DeepSpeed's content ({type(error).__name__}: {error})"
        raise CheckpointError(problem, where=folder, hint=AGAIN) from None


def read_info(path: Path) -> CheckpointInfo:
    """Read a summary of a checkpoint from rank 0's files.

    Args:
        path: a step, or a run for its newest step.

    Raises:
        CheckpointError: it is no checkpoint, or one of these files is damaged.
    """
    files = read_step_folders(find_step_folder(path))[0]
    model = _model_states(read_archive(files.models[0]), files)
    first = next(iter(files.optimizers.values()), None)
    optimizer = _optimizer_states(read_archive(first)) if first is not None else {}
    with explain_format_errors(files.folder):
        return _facts(files, model, optimizer)


def num_groups(path: Path) -> int:
    """The number of parameter groups of ZeRO's optimizer, from rank 0's file; 0 if unknown.

    Args:
        path: a step, or a run for its newest step.

    Raises:
        CheckpointError: it is no checkpoint, or that file is damaged.
    """
    files = read_step_folders(find_step_folder(path), swapped=True)[0]
    with explain_format_errors(files.folder):
        if files.optimizers:
            of_torch = _of_torch(_optimizer_states(read_archive(files.optimizers[0])))
        else:  # without ZeRO it lies beside the model, in DeepSpeed's wrapper or by itself
            whole = read_archive(files.models[0]).content["optimizer"]
            of_torch = whole.get("optimizer_state_dict", whole)
        # An elastic checkpoint has a list here.
        return len(of_torch["param_groups"]) if isinstance(of_torch, Mapping) else 0


def shapes_of(model: StateDict) -> Shapes:
    """Shapes of the optimizer's parameters. ValueError if these are no shapes."""
    shapes: Shapes = model.get("param_shapes") or []
    for name, shape in (item for group in shapes for item in group.items()):
        # A damaged file may have something huge in place of a number.
        if not all(isinstance(size, int) for size in shape):
            raise ValueError(f"a parameter '{name}' whose shape is not of integers")
        check_shape(shape)
        if "/" in name or min(shape, default=0) < 0:
            raise ValueError(f"a parameter '{name}' of shape {shape}")
    return shapes


def _check_names(model: StateDict) -> None:
    """Check that names of tensors are strings, before they are hashed. ValueError if they are not."""
    tied = model.get("shared_params") or {}
    if not all(isinstance(name, str) for name in (*(model.get("buffer_names") or ()), *tied, *tied.values())):
        raise ValueError("a name of a tensor that is no text")


def _model_states(archive: Archive, files: StepFolder) -> StateDict:
    content = archive.content
    is_pipeline = files.pipeline_stages is not None
    if is_pipeline and isinstance(content, Mapping) and content.get("module", 0) is None:
        content = {**content, "module": {}}  # what it has lies in the files of layers
    if not isinstance(content, Mapping) or not isinstance(content.get("module"), Mapping):
        raise CheckpointError("has no model states of DeepSpeed", where=archive.file, hint=AGAIN)
    if content.get("ds_autoep_layers") or content.get("autoep_layers"):
        raise CheckpointError(
            "uses DeepSpeed's AutoEP, whose experts zerokit does not support",
            where=archive.file,
            hint="Convert it with DeepSpeed's ds_to_universal.py",
        )
    with explain_format_errors(archive.file):
        _check_names(content)
    return content


def _optimizer_states(archive: Archive) -> StateDict:
    content = archive.content
    states = content.get("optimizer_state_dict") if isinstance(content, Mapping) else None
    if not isinstance(states, Mapping) or "partition_count" not in states:
        raise CheckpointError("has no optimizer states of ZeRO", where=archive.file, hint=AGAIN)
    return states


def _facts(files: StepFolder, model: StateDict, optimizer: StateDict) -> CheckpointInfo:
    # BF16_Optimizer partitions like stage 1, and records no stage.
    stage = getattr(optimizer.get("zero_stage"), "arguments", (optimizer.get("zero_stage"),))[0]
    if not isinstance(stage, int):
        divided = "zero_pp_rank" in files.models[0].name
        stage = 3 if divided else 1 if optimizer or _has_parts(model) else 0
    counts = optimizer.get("partition_count") if optimizer else model.get("dp_world_size")
    num_ranks = max(counts, default=1) if isinstance(counts, list | tuple) else counts
    if isinstance(num_ranks, int) and num_ranks > MOST_RANKS:
        raise ValueError(f"{num_ranks:,} ranks")
    tensors = (one for one in model["module"].values() if isinstance(one, StoredTensor))
    floats = (one.dtype for one in tensors if one.is_float)
    version, step = model.get("ds_version"), model.get("global_steps")
    return CheckpointInfo(
        files.folder,
        stage,
        num_ranks if isinstance(num_ranks, int) and num_ranks > 0 else 1,
        _whole_number(step),
        version if isinstance(version, str) else None,
        next(floats, None),
        files.universal is not None,
        files.tensor_parallel,
        files.pipeline_stages,
    )


def _has_parts(model: StateDict) -> bool:
    """Whether each rank has written its part of an optimizer that records no stage.

    That is BF16_Optimizer: without ZeRO before 0.17.6, and in stage 1 with float32 gradients. Releases from
    0.17.6 to 0.18.4 record shapes of parameters for it, but use another optimizer, which has no parts and is
    not saved (`DDP_BFLOAT16` in runtime/constants.py).
    """
    if model.get("param_shapes") is None:
        return False
    release, config = _RELEASE.match(str(model.get("ds_version"))), model.get("ds_config")
    first, last = _WITHOUT_BF16_OPTIMIZER
    if release is None or not first <= tuple(map(int, release.groups())) <= last:
        return True
    sections = ("zero_optimization", "data_types")
    found = [config.get(name) if isinstance(config, Mapping) else None for name in sections]
    zero, types = (one if isinstance(one, Mapping) else {} for one in found)
    stage = zero.get("stage", 0)
    return stage > 1 or (stage == 1 and types.get("grad_accum_dtype") not in _FLOAT32)


def _check_place(archive: Archive) -> None:
    """Check that a file's name is that under which it was saved."""
    wrote, is_of = (dict(_PLACES.findall(name)) for name in (archive.saved_as, archive.file.name))
    if any(is_of.get(kind) != number for kind, number in wrote.items()):
        raise CheckpointError(
            f"was saved as '{archive.saved_as}': the files of two ranks were swapped",
            where=archive.file,
            hint="Give each its own name again",
        )


def _check_ranks(facts: CheckpointInfo, files: StepFolder, model: StateDict) -> None:
    saved_by = model.get("dp_world_size")
    if files.universal is not None:
        return
    if facts.stage and isinstance(saved_by, int) and files.optimizers and saved_by != facts.num_ranks:
        raise CheckpointError(
            f"is of a run of {saved_by:,} ranks, but the optimizer's parts are of {facts.num_ranks:,}",
            where=files.models[0],
            hint="Two runs are in one folder, or it uses MiCS, which zerokit does not support",
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
                where=facts.folder,
                hint="Copy them from the machines that saved them, or use an earlier checkpoint",
            )
        foreign = next((file for rank, file in found.items() if rank >= wanted), None)
        if foreign is not None:
            raise CheckpointError(
                f"is of a rank beyond the run's {facts.num_ranks:,} ranks: two runs are in one folder",
                where=foreign,
                hint="Remove the files of the other run",
            )


def _check_steps(files: StepFolder, models: Sequence[StateDict], optimizers: Sequence[StateDict]) -> None:
    """Check that all ranks are at one step."""
    for of, steps in (
        (files.models, [_whole_number(states.get("global_steps")) for states in models]),
        (files.optimizers, [_optimizer_step(states) for states in optimizers]),
    ):
        for file, step in zip(of.values(), steps, strict=True):
            if step != steps[0]:
                raise CheckpointError(
                    f"is of step {step}, and rank 0's file of step {steps[0]}: two checkpoints were mixed",
                    where=file,
                    hint="Use another one",
                )
    model_step = models[0].get("global_steps")
    optimizer_step = _optimizer_step(optimizers[0]) if optimizers else None
    if isinstance(model_step, int) and optimizer_step is not None and optimizer_step > model_step:
        raise CheckpointError(
            f"is of step {optimizer_step}, and the model of step {model_step}: two checkpoints were mixed",
            where=files.optimizers[0],
            hint="Use another one",
        )


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _optimizer_step(states: StateDict) -> int | None:
    """Steps that torch's or DeepSpeed's optimizer has counted."""
    inner = _of_torch(states)
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


def _of_torch(states: StateDict) -> Any:
    """The state dict of the inner optimizer in ZeRO's."""
    return states.get("base_optimizer_state", states.get("optimizer_state_dict"))
