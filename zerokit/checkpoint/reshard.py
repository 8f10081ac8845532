"""Converts a checkpoint to another number of ranks or another ZeRO stage.

It writes the files that DeepSpeed itself would have saved: each rank loads its part, with no change of the
ds_config. DeepSpeed's universal format is worse: every rank reads the files of all parameters, under stage 3
all groups get the settings of the first one (stage3.py,
`load_hp_checkpoint_state_from_checkpoint_dir_stage3`), and neither buffers nor frozen parameters are loaded.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from zerokit import console
from zerokit.checkpoint.checksums import (
    SUMS_FILE,
    checksums,
    files_of,
    has_checksums,
    record_num_files,
    write_checksums,
)
from zerokit.checkpoint.deepspeed_folder import frozen_parameters
from zerokit.checkpoint.element_reader import ElementReader
from zerokit.checkpoint.optimizer_groups import read_groups, zero_section, zero_settings
from zerokit.checkpoint.optimizer_partitions import Stage1And2Partitions, Stage3Partitions
from zerokit.checkpoint.output_folder import check_output, check_space, output_folder
from zerokit.checkpoint.saved_states import SavedStates, explain_format_errors, read_states, shapes_of
from zerokit.checkpoint.step_folder import (
    IDENTITY_FILE,
    LATEST,
    OF_ACCELERATE,
    TRAINER_STATE,
    is_of_checkpoint,
    is_step_name,
    names_in,
)
from zerokit.checkpoint.tensors import NamedTensor, whole_tensor
from zerokit.checkpoint.torch_file import Size, StoredTensor, record
from zerokit.checkpoint.torch_file_writer import NewTensor, make_pickle, write_archive
from zerokit.checkpoint.verify import verify as verify_all
from zerokit.errors import CheckpointError, printable
from zerokit.files import write_file
from zerokit.staging import clear
from zerokit.units import format_bytes

_OF_ANY_STAGE = ("loss_scaler", "dynamic_loss_scale", "overflow")
"""States besides tensors that are the same for stages 1, 2 and 3."""
_RNG_STATE = re.compile(r"rng_state(?:_(\d+))?\.pth")


@dataclass(frozen=True)
class Resharded:
    folder: Path
    """It has ``latest`` and the folder that ``latest`` names, or is the latter."""
    load: str
    """A line of Python that loads it."""
    stage: int
    num_ranks: int
    num_files: int
    nbytes: int


@dataclass(frozen=True)
class _Plan:
    """The files of one model-parallel rank; mostly there is one."""

    saved: SavedStates
    stage: int
    num_ranks: int
    """Ranks that partition its optimizer."""
    partitions: Stage1And2Partitions | Stage3Partitions

    @property
    def num_models(self) -> int:
        return self.num_ranks if self.stage == 3 else 1

    @property
    def _of_model(self) -> str:
        return f"mp_rank_{self.saved.files.model_rank:02d}"

    @property
    def nbytes(self) -> int:
        """Size of all files."""
        _, model = next(self.models())  # those of all ranks are as large
        _, optimizer = self.optimizer(0)
        return make_pickle(model).nbytes * self.num_models + make_pickle(optimizer).nbytes * self.num_ranks

    def files(self) -> Iterator[tuple[str, Any]]:
        """Each file's name and content."""
        yield from self.models()
        for rank in range(self.num_ranks):
            yield self.optimizer(rank)

    def models(self) -> Iterator[tuple[str, Any]]:
        """Names and contents of the model state files."""
        saved = self.saved
        if isinstance(self.partitions, Stage1And2Partitions):
            yield f"{self._of_model}_model_states.pt", _whole_model(self, self.partitions)
        else:
            for rank in range(self.num_ranks):
                model = saved.models[rank % len(saved.models)]
                content = _divided_model(self, self.partitions, model, rank)
                yield f"zero_pp_rank_{rank}_{self._of_model}_model_states.pt", content

    def optimizer(self, rank: int) -> tuple[str, Any]:
        """Name and content of a rank's optimizer state file."""
        saved = self.saved
        number = rank % len(saved.optimizers)
        file = saved.files.optimizers[number]
        states = _optimizer(self, saved.optimizers[number], rank)
        name = re.sub(r"zero_pp_rank_\d+", f"zero_pp_rank_{rank}", file.name)
        return name, {**saved.archives[file].content, "optimizer_state_dict": states}


def reshard(
    path: Path, output: Path, *, num_ranks: int, stage: int | None = None, verify: bool = True, sums: bool = True
) -> Resharded:
    """Write the checkpoint for `num_ranks` ranks.

    Other files of the Trainer's and accelerate's checkpoints are copied.

    Args:
        path: a checkpoint, or a run for its newest checkpoint.
        output: a folder that does not exist or is empty. If its name is that of a step, such as
            global_step1200, it gets the files of ranks alone, and its parent ``latest``, if it has none.
        num_ranks: of the new run, including model-parallel ranks.
        stage: ZeRO stage of the new run; None: unchanged.
        verify: check first that files are unchanged and of one step.
        sums: write ``SHA256SUMS`` if the checkpoint has it.

    Raises:
        ZerokitError: the checkpoint is unusable or of an unsupported kind, or the folder cannot be written or
            has no room.
    """
    parts = read_states(path)
    check_output(output)
    step = parts[0].files.folder
    for saved in parts:
        _check_kind(saved, stage)
    if num_ranks % len(parts):
        _refuse(
            parts[0],
            f"has a model that is divided among {len(parts):,} ranks; {num_ranks:,} is no multiple of that",
            f"Name a number such as --num-gpus {len(parts) * 2}",
        )
    if verify and (problem := verify_all(step).checksum_problem) is not None:
        raise problem
    with explain_format_errors(step):
        plans = [_plan(saved, num_ranks // len(parts), stage or saved.facts.stage) for saved in parts]
        needed = sum(plan.nbytes for plan in plans)
    is_step = output.name == step.name or is_step_name(output.name)
    others = {} if is_step else dict(_others(step, num_ranks))
    loads = _loading_line(output, others, is_accelerate=step.name == OF_ACCELERATE)
    inside = "" if is_step else f"{step.name}/"
    others |= {f"{inside}{file.name}": file for part in parts for file in part.files.layers.values()}
    needed += sum(file.stat().st_size for file in others.values())
    check_space(output, needed)
    console.note(f"{printable(output)} takes {format_bytes(needed)}")
    with output_folder(output) as staging, explain_format_errors(step):
        clear(staging)
        _write(staging, plans, others, is_step=is_step, sums=sums)
        files = files_of(staging)
    if is_step:
        loads = _loading_line_of_step(output)
    return Resharded(
        output,
        loads,
        plans[0].stage,
        num_ranks,
        len(files) - 1,  # the lock
        sum((output / name).stat().st_size for name in files if (output / name).is_file()),
    )


def _write(staging: Path, plans: Sequence[_Plan], others: Mapping[str, Path], *, is_step: bool, sums: bool) -> None:
    step = plans[0].saved.files.folder
    folder = staging if is_step else staging / step.name
    folder.mkdir(exist_ok=True)
    with ElementReader() as reader, console.progress() as bar:
        total = sum(plan.num_models + plan.num_ranks for plan in plans)
        task = bar.add_task("resharding", total=total, note="")
        for name, content in itertools.chain.from_iterable(plan.files() for plan in plans):
            write_archive(folder / name, make_pickle(content), reader)
            bar.advance(task)
    for name, file in others.items():
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, staging / name)
    if is_step:
        return
    write_file(staging / LATEST, step.name)
    if sums and is_of_checkpoint(step) and has_checksums(step.parent):
        written = checksums(staging, [n for n in files_of(staging) if not n.startswith(".")])
        write_checksums(staging, written | record_num_files(staging, len(written)))


def _loading_line(output: Path, others: Mapping[str, Path], *, is_accelerate: bool) -> str:
    """How the program that saved the checkpoint loads the folder that has ``latest``."""
    if IDENTITY_FILE in others:
        return f"zerokit train --recipe RECIPE --resume {shlex.quote(str(output))}"
    if TRAINER_STATE in others:
        return f"trainer.train(resume_from_checkpoint={str(output)!r})"
    return f"accelerator.load_state({str(output)!r})" if is_accelerate else f"engine.load_checkpoint({str(output)!r})"


def _loading_line_of_step(step: Path) -> str:
    """How DeepSpeed loads a step folder, which the ``latest`` of its parent names if it had none."""
    latest = step.absolute().parent / LATEST
    if not os.path.lexists(latest):
        write_file(latest, step.name)
    is_latest = latest.is_file() and latest.read_bytes().strip() == os.fsencode(step.name)
    tag = "" if is_latest else f", tag={step.name!r}"
    return f"engine.load_checkpoint({str(step.parent)!r}{tag})"


def _check_kind(saved: SavedStates, stage: int | None) -> None:
    facts = saved.facts
    if facts.universal:
        _refuse(saved, "is a universal checkpoint", "Any number of ranks can load it, with checkpoint.load_universal")
    if facts.stage == 0:
        _refuse(saved, "is not partitioned: it was saved without ZeRO", "Any number of ranks can resume from it")
    if facts.stage == 3 and saved.files.tensor_parallel > 1:
        _refuse(
            saved, "has parameters of stage 3 in tensor-parallel parts", "Resume on the number of ranks that saved it"
        )
    if saved.files.experts or saved.models[0].get("num_experts"):
        _refuse(saved, "has experts on several ranks", "Resume on the number of ranks that saved it")
    divided = saved.files.tensor_parallel > 1 or saved.files.pipeline_stages is not None
    if divided and stage not in (None, facts.stage):
        _refuse(saved, "has a model that is divided among ranks", "Keep its stage: leave out --zero-stage")
    if not saved.optimizers or not saved.models[0].get("param_shapes"):
        _refuse(saved, "has no optimizer states", "Load its weights: 'zerokit checkpoint export'")


def _refuse(saved: SavedStates, problem: str, hint: str) -> NoReturn:
    raise CheckpointError(problem, where=saved.facts.folder, hint=hint)


def _plan(saved: SavedStates, num_ranks: int, stage: int) -> _Plan:
    groups = read_groups(saved)
    settings = zero_settings(saved)
    size = settings.sub_group_size
    if saved.facts.stage == 3:
        was = Stage3Partitions(groups, saved.facts.num_ranks, size)
        if [list(one) for one in was.shapes] != [list(one) for one in shapes_of(saved.models[0])]:
            _refuse(
                saved,
                f"does not match its sub_group_size ({size:,.0f})",
                "Resume on the number of ranks that saved it",
            )
    if stage == 3:
        return _Plan(saved, stage, num_ranks, Stage3Partitions(groups, num_ranks, size))
    paddings = saved.optimizers[0].get("param_alignment_paddings") or ()
    aligned = settings.parameter_alignment or any(any(group) for group in paddings)
    flat = Stage1And2Partitions(
        groups,
        num_ranks,
        round_robin=settings.round_robin_gradients,
        aligned_as=saved.facts.dtype if aligned else None,
    )
    return _Plan(saved, stage, num_ranks, flat)


def _optimizer(plan: _Plan, states: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """The `state_dict` of a rank's ZeRO optimizer."""
    saved = plan.saved
    was_divided = saved.facts.stage == 3
    inner = states["optimizer_state_dict" if was_divided else "base_optimizer_state"]
    if was_divided != (plan.stage == 3):
        if not was_divided and "loss_scaler" not in states:
            _refuse(saved, "was saved by DeepSpeed's BF16_Optimizer", "Keep its stage: leave out --zero-stage")
        states = {key: states[key] for key in _OF_ANY_STAGE} | {"ds_version": saved.facts.version}
    made = dict(states)
    if plan.stage != saved.facts.stage:
        made["zero_stage"] = record("deepspeed.runtime.zero.config.ZeroStageEnum", plan.stage)
    settings = [{key: value for key, value in group.items() if key != "params"} for group in inner["param_groups"]]
    if isinstance(plan.partitions, Stage1And2Partitions):
        flat = plan.partitions
        # BF16_Optimizer saves its part with padding.
        padded = not was_divided and "zero_stage" not in states
        numbers = [[number] for number in range(len(settings))]
        made |= {
            "partition_count": [plan.num_ranks] * len(settings),
            "single_partition_of_fp32_groups": flat.weights(rank, padded=padded),
            "group_paddings": flat.part_paddings(rank),
            "param_slice_mappings": flat.slices(rank),
            "base_optimizer_state": _inner(inner, settings, numbers, flat.states(rank)),
        }
        if was_divided or "param_alignment_paddings" in states:
            made["param_alignment_paddings"] = flat.paddings
    else:
        divided = plan.partitions
        made |= {
            "partition_count": plan.num_ranks,
            "fp32_flat_groups": divided.weights(rank),
            "optimizer_state_dict": _inner(inner, settings, divided.numbers, divided.states(rank)),
        }
    return made


def _inner(
    inner: Mapping[str, Any], settings: list[dict[str, Any]], numbers: list[list[int]], states: list[dict[str, Any]]
) -> dict[str, Any]:
    """The state dict of torch's optimizer for flat parameters."""
    return {
        **inner,
        "state": {number: state for number, state in enumerate(states) if state},
        "param_groups": [{**one, "params": of} for one, of in zip(settings, numbers, strict=True)],
    }


def _common(plan: _Plan, model: Mapping[str, Any]) -> dict[str, Any]:
    config = model.get("ds_config") or {}
    if plan.stage != plan.saved.facts.stage:
        config = {**config, "zero_optimization": {**zero_section(plan.saved), "stage": plan.stage}}
    made = {**model, "dp_world_size": plan.num_ranks, "ds_config": config}
    # Files of layers have a pipeline's module.
    return made if plan.saved.files.pipeline_stages is None else {**made, "module": None}


def _whole_model(plan: _Plan, flat: Stage1And2Partitions) -> dict[str, Any]:
    saved = plan.saved
    first = saved.models[0]
    made = {**_common(plan, first), "param_shapes": flat.shapes}
    if saved.facts.stage != 3:
        return made
    trained = {name: tensor for group in flat.groups for name, tensor in group.weights.items()}
    frozen = frozen_parameters(saved.models)
    tied = first.get("shared_params") or {}
    found: OrderedDict[str, Any] = OrderedDict()
    for name, placeholder in first["module"].items():
        tensor = trained.get(tied.get(name, name)) or frozen.get(tied.get(name, name))
        if tied.get(name) in found:
            found[name] = found[tied[name]]
        elif isinstance(placeholder, StoredTensor) and tensor is not None:
            found[name] = NewTensor(placeholder.dtype, tensor.shape, (tensor,))
        else:
            found[name] = placeholder
    made["module"] = found
    if first.get("frozen_param_fragments") is not None:
        made["frozen_param_fragments"] = OrderedDict((name, found[name]) for name in frozen if name in found)
    return made


def _divided_model(plan: _Plan, divided: Stage3Partitions, model: Mapping[str, Any], rank: int) -> dict[str, Any]:
    saved = plan.saved
    made = {**_common(plan, model), "param_shapes": divided.shapes}
    if saved.facts.stage == 3:
        frozen = frozen_parameters(saved.models)
    else:
        frozen = dict(_not_trained(saved, divided))
        buffers = set(model.get("buffer_names") or ())
        made["frozen_param_shapes"] = OrderedDict((name, Size(of.shape)) for name, of in frozen.items()) or None
        made["module"] = OrderedDict(
            (name, NewTensor(one.dtype, (0,)) if isinstance(one, StoredTensor) and name not in buffers else one)
            for name, one in model["module"].items()
        )
    parts = OrderedDict((name, divided.parameter(tensor, rank)) for name, tensor in frozen.items())
    # If this dict were empty, DeepSpeed would look up all frozen parameters in it.
    return {**made, "frozen_param_fragments": parts or made.get("frozen_param_fragments")}


def _not_trained(saved: SavedStates, divided: Stage3Partitions) -> Iterator[tuple[str, NamedTensor]]:
    """Parameters of stages 1 and 2 that the optimizer does not have."""
    first = saved.models[0]
    others = {name for _, names in divided.flats for name in names}
    others |= {*(first.get("buffer_names") or ()), *(first.get("shared_params") or ())}
    for name, tensor in first["module"].items():
        if isinstance(tensor, StoredTensor) and name not in others:
            yield name, whole_tensor(name, tensor)


def _others(step: Path, num_ranks: int) -> Iterator[tuple[str, Path]]:
    """Other files of a Trainer's or accelerate's checkpoint, by their new names."""
    if not is_of_checkpoint(step):
        return
    above = step.parent
    for name in names_in(above):
        path = above / name
        files = [path]
        if path.is_dir():
            files = [] if path == step or path.is_symlink() else sorted(path.rglob("*"))
        for file in files:
            found = _RNG_STATE.fullmatch(name)
            new = file.relative_to(above).as_posix()
            if found is not None:
                rank = int(found[1] or 0)
                if rank >= num_ranks:
                    continue
                new = "rng_state.pth" if num_ranks == 1 else f"rng_state_{rank}.pth"
            if file.is_file() and new not in (LATEST, SUMS_FILE):
                yield new, file
