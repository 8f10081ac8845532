"""Finds DeepSpeed's files of a step, and their ranks (runtime/engine.py, `_get_ckpt_name`)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from zerokit.documents import COPY_HINT, first_unreadable, is_folder, read_bytes, unreadable_reason
from zerokit.errors import CheckpointError

AGAIN = "Use an earlier checkpoint, or copy this one again"
_MODEL_STATES = re.compile(r"(?:zero_pp_rank_(?P<rank>\d+)_)?mp_rank_(?P<model_rank>\d+)_model_states\.pt")
_OPTIMIZER_STATES = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(?P<rank>\d+)_mp_rank_(?P<model_rank>\d+)_optim_states\.pt"
)
_EXPERT = re.compile(r"layer_(?P<layer>\d+)_expert_(?P<expert>\d+)_mp_rank_\d+_model_states\.pt")
_EXPERT_OPTIMIZER = re.compile(r"expp_rank_\d+_mp_rank_\d+_optim_states\.pt")
_LAYER = re.compile(r"layer_(?P<layer>\d+)(?:-model_(?P<tensor_rank>\d+))?-model_states\.pt")
"""Layers of a pipeline (runtime/pipe/module.py, `ckpt_layer_path`)."""
_OF_DEEPSPEED = (_MODEL_STATES, _OPTIMIZER_STATES, _EXPERT, _EXPERT_OPTIMIZER, _LAYER)
_UNFINISHED = re.compile(r".*\.(tmp|partial|incomplete)$|tmp[-_.].*", re.IGNORECASE)
_NUMBERED = re.compile(r"(?P<kind>global_step|checkpoint[-_]|epoch_|step_)(?P<number>\d+)(?:_universal)?")
LATEST = "latest"
"""The file that names the newest step."""
_LATEST = (LATEST, "latest_universal")
OF_ACCELERATE = "pytorch_model"
"""accelerate's name for the folder of a step."""
_INDEX = ".index.json"
"""Suffix of files that map weights to files."""
_WHOLE_WEIGHTS = (
    "model.safetensors",
    f"model.safetensors{_INDEX}",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    f"pytorch_model.bin{_INDEX}",
    "adapter_model.bin",
)
"""Files of `save_pretrained` (Trainer, accelerate) and of DeepSpeed's zero_to_fp32."""
_LONGEST_NAME = 255
"""Bytes of a file name."""
TRAINER_STATE = "trainer_state.json"
"""The Trainer's state, next to DeepSpeed's folder."""
IDENTITY_FILE = "zerokit_run.json"
"""Identity of the run; `zerokit train` saves it in a checkpoint."""


@dataclass(frozen=True)
class StepFolder:
    """The files of one step, of one model-parallel rank."""

    folder: Path
    model_rank: int
    """DeepSpeed's ``mp_rank``; tensor-parallel ranks of a pipeline stage are consecutive."""
    tensor_parallel: int
    """Tensor-parallel ranks."""
    pipeline_stages: int | None
    """None without a pipeline."""
    models: Mapping[int, Path]
    """Model states by rank; of stages 0 to 2 only rank 0's."""
    optimizers: Mapping[int, Path]
    experts: Mapping[tuple[int, int], Path]
    """By the number of the mixture and of the expert."""
    layers: Mapping[int, Path]
    """Of a pipeline; the first stage's entry has all stages."""
    universal: Path | None
    """Folder with one folder per parameter, in a universal checkpoint."""

    @property
    def files(self) -> list[Path]:
        """All of them, except the parameters of a universal checkpoint."""
        some = (self.models, self.optimizers, self.experts, self.layers)
        return [file for files in some for file in files.values()]


def find_step_folder(path: Path) -> Path:
    """The folder of one step: `path` itself, or the newest one in it.

    Raises:
        CheckpointError: there is none, ``latest`` names a missing one, the newest one is unknown, or the
            checkpoint has a special file or a link that leads out of it.
    """
    step = _find_step_folder(path)
    if (reason := unreadable_reason(step, path)) is not None:
        raise CheckpointError(reason, where=step, hint="Name the folder that the link leads to")
    check_regular_files(step.parent if is_of_checkpoint(step) else step)
    return step


def has_step_folder(path: Path) -> bool:
    """Whether a folder is or has a DeepSpeed checkpoint, complete or not."""
    try:
        _find_step_folder(path)
    except CheckpointError:
        return False
    return True


def check_regular_files(checkpoint: Path) -> None:
    """Refuse a checkpoint with a special file or a link that leads out of it.

    Raises:
        CheckpointError: it has one, or cannot be read.
    """
    try:
        found = first_unreadable(checkpoint)
    except OSError as error:
        raise _unreadable(checkpoint, error) from None
    if found is not None:
        raise CheckpointError(found[1], where=found[0], hint=COPY_HINT)


def _find_step_folder(path: Path) -> Path:
    if not is_folder(path):
        problem = "is a file, not a folder" if os.path.lexists(path) else "no such folder"
        raise CheckpointError(problem, where=path, hint="Name the folder of a checkpoint")
    if any(pattern.fullmatch(name) for name in names_in(path) for pattern in _OF_DEEPSPEED):
        return path
    for latest, name in named_as_latest(path).items():
        if name not in ("", "..") and (path / name).parent == path and is_folder(path / name):
            return path / name
        problem = "is empty" if not name else "is damaged: it does not name a checkpoint"
        if name.isprintable() and name:
            problem = f"names the checkpoint '{name}', which does not exist"
        raise CheckpointError(problem, where=path / latest, hint=AGAIN)
    for folder in [*reversed(numbered_folders(path)), path / OF_ACCELERATE]:
        if folder.is_dir():
            return _find_step_folder(folder)
    weights = next((name for name in _WHOLE_WEIGHTS if (path / name).is_file()), None)
    if weights is not None:
        of_several = weights.endswith(_INDEX)
        raise CheckpointError(
            "has whole weights" + ("" if of_several else f" ({weights})") + ", not the files of ranks",
            where=path,
            hint=f"Use {'this folder' if of_several else 'that file'} directly",
        )
    raise CheckpointError(
        "has no DeepSpeed checkpoint",
        where=path,
        hint="Name the folder that contains 'latest', or one like global_step1200",
    )


def named_as_latest(path: Path) -> dict[str, str]:
    """Contents of ``latest`` and ``latest_universal``, if they exist. ZerokitError if one cannot be read."""
    found = {name: path / name for name in _LATEST if os.path.lexists(path / name)}
    return {
        name: read_bytes(file, max_bytes=_LONGEST_NAME, folder=path).decode(errors="replace").strip()
        if file.is_file()
        else ""
        for name, file in found.items()
    }


def optimizer_ranks(names: Iterable[str]) -> list[tuple[int, int]]:
    """Rank and model-parallel rank of each file of ZeRO's optimizer states among the names in a step folder."""
    found = filter(None, map(_OPTIMIZER_STATES.fullmatch, names))
    return [(int(match["rank"]), int(match["model_rank"])) for match in found]


def is_numbered(name: str) -> bool:
    """Whether a folder name is that of a run's checkpoint."""
    return number_of(name) is not None


def is_step_name(name: str) -> bool:
    """Whether a folder name is DeepSpeed's own for a step."""
    match = _NUMBERED.fullmatch(name)
    return match is not None and match["kind"] == "global_step"


def number_of(name: str) -> int | None:
    """The step or epoch in the name of a checkpoint; None for other names."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else int(match["number"])


def is_of_run(step: Path) -> bool:
    """Whether the parent folder belongs to the same run, by its name or by ``latest``."""
    named = is_numbered(step.name) or step.name == OF_ACCELERATE
    return named or any(os.path.lexists(step.parent / name) for name in _LATEST)


def is_of_checkpoint(step: Path) -> bool:
    """Whether the parent folder has the rest of the checkpoint, as the Trainer's does."""
    above = step.parent
    return step.name == OF_ACCELERATE or is_numbered(above.name) or (above / TRAINER_STATE).is_file()


def numbered_folders(path: Path) -> list[Path]:
    """The folders of `path` that are named by a step, in order.

    Raises:
        CheckpointError: some are named by something else, such as epochs.
    """
    matches = [match for name in names_in(path) if (match := _NUMBERED.fullmatch(name))]
    found = sorted((match for match in matches if (path / match[0]).is_dir()), key=_place)
    other = next((match for match in found if match["kind"] != found[0]["kind"]), None)
    if other is not None:
        raise CheckpointError(
            f"has checkpoints of two kinds, such as {found[0][0]} and {other[0]}: it is unknown which are newer",
            where=path,
            hint="Name one checkpoint, or move one kind to another folder",
        )
    return [path / match[0] for match in found]


def _place(match: re.Match[str]) -> tuple[int, str]:
    return int(match["number"]), match[0]


def read_step_folders(folder: Path, *, swapped: bool = False) -> list[StepFolder]:
    """Sort the files of a folder by model-parallel rank.

    Args:
        swapped: accept a checkpoint whose weights are in NVMe swap files.

    Raises:
        CheckpointError: a file is unfinished, two files are of the same rank, a kind is unsupported, or files
            of a model-parallel rank are missing.
    """
    names = names_in(folder)
    _refuse(folder, [name for name in names if not (swapped and _SWAPPED.fullmatch(name))])
    layers = _layers(folder, names)
    model_ranks = _model_ranks(folder, names)
    tensor_parallel = len(layers) or len(model_ranks)
    if len(model_ranks) % tensor_parallel or any(rank >= tensor_parallel for rank in layers):
        problem = f"has layers of {tensor_parallel:,} tensor-parallel ranks, and states of {len(model_ranks):,}"
        raise CheckpointError(problem, where=folder, hint=AGAIN)
    experts = {
        (int(match["layer"]), int(match["expert"])): folder / name
        for name in names
        if (match := _EXPERT.fullmatch(name))
    }
    if experts and len(model_ranks) > 1:
        problem = "has experts and a divided model, which zerokit does not support"
        raise CheckpointError(problem, where=folder, hint=CONVERT)
    return [
        StepFolder(
            folder,
            rank,
            tensor_parallel,
            len(model_ranks) // tensor_parallel if layers else None,
            _by_rank(folder, names, _MODEL_STATES, rank),
            _by_rank(folder, names, _OPTIMIZER_STATES, rank),
            experts,
            layers.get(rank, {}),
            folder / "zero" if (folder / "zero").is_dir() else None,
        )
        for rank in model_ranks
    ]


def _layers(folder: Path, names: Iterable[str]) -> dict[int, dict[int, Path]]:
    """The layers of a pipeline, by tensor-parallel rank."""
    found: dict[int, dict[int, Path]] = {}
    for name in names:
        if match := _LAYER.fullmatch(name):
            found.setdefault(int(match["tensor_rank"] or 0), {})[int(match["layer"])] = folder / name
    for rank, layers in found.items():
        missing = {layer for of in found.values() for layer in of} - set(layers)
        if missing:
            problem = f"lacks layer {min(missing)} of tensor-parallel rank {rank}"
            raise CheckpointError(problem, where=folder, hint=AGAIN)
    return {rank: dict(sorted(layers.items())) for rank, layers in sorted(found.items())}


def _model_ranks(folder: Path, names: Iterable[str]) -> list[int]:
    """The model-parallel ranks; each has model states."""
    models = [match for name in names if (match := _MODEL_STATES.fullmatch(name))]
    optimizers = [match for name in names if (match := _OPTIMIZER_STATES.fullmatch(name))]
    found = {int(match["model_rank"]) for match in [*models, *optimizers]}
    whole = {int(match["model_rank"]) for match in models if int(match["rank"] or 0) == 0}
    missing = next((rank for rank in range(max(found, default=0) + 1) if rank not in whole), None)
    if missing is not None:
        of = f"mp_rank_{missing:02d}" if missing else "rank 0"
        raise CheckpointError(f"lacks the model states of {of}", where=folder, hint=AGAIN)
    return sorted(found)


def _refuse(folder: Path, names: Iterable[str]) -> None:
    for pattern, problem, hint in (
        (_UNFINISHED, "was left by an unfinished save", AGAIN),
        (
            _SWAPPED,
            "has master weights in NVMe swap files, which zerokit does not read",
            "Resume from it with 'zerokit train': the model that a run saves at its end is complete",
        ),
    ):
        one = next((name for name in names if pattern.fullmatch(name)), None)
        if one is not None:
            raise CheckpointError(problem, where=folder / one, hint=hint)


_SWAPPED = re.compile("offloaded_tensors")
CONVERT = "Convert it with DeepSpeed's ds_to_universal.py"


def _by_rank(folder: Path, names: Iterable[str], pattern: re.Pattern[str], model_rank: int) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for name in names:
        if (match := pattern.fullmatch(name)) and int(match["model_rank"]) == model_rank:
            rank = int(match["rank"] or 0)
            if rank in found:
                raise CheckpointError(
                    f"and {found[rank].name} are both of rank {rank}: two runs are in one folder",
                    where=folder / name,
                    hint="Remove the files of the other run",
                )
            found[rank] = folder / name
    return dict(sorted(found.items()))


def names_in(folder: Path) -> list[str]:
    """The sorted names in a folder. CheckpointError if it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None


def _unreadable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot be read: {error.strerror}", where=folder, hint="Check its permissions")
