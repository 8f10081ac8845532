"""Ways in which a checkpoint is damaged, each with what is said of it."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerokit.checkpoint.torch_file import read_archive

Damage = Callable[[Path], object]
"""Does harm to the files of a step's folder."""

MODEL, MODEL3 = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_model_states.pt"
OPTIMIZER, OPTIMIZER_BF16 = (f"{precision}zero_pp_rank_{{}}_mp_rank_00_optim_states.pt" for precision in ("", "bf16_"))


@dataclass(frozen=True)
class Case:
    """A way to damage the checkpoint of a run."""

    name: str
    run: str
    """Of `checkpoint_runs.RUNS`."""
    damage: Damage
    said: str
    """A regular expression."""


def rewrite(name: str, change: Callable[[Any], object]) -> Damage:
    """Save a file again with another content."""

    def damage(folder: Path) -> None:
        content = torch.load(folder / name, weights_only=False)
        change(content)
        torch.save(content, folder / name)

    return damage


def put(path: Iterable[Any], value: Any) -> Callable[[Any], None]:
    """Set what is at a path of keys."""
    *above, last = path

    def change(content: Any) -> None:
        for key in above:
            content = content[key]
        content[last] = value(content[last]) if callable(value) else value

    return change


def cut(name: str, share: float) -> Damage:
    """Keep the first part of a file."""
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * share))


def flip(name: str, *path: Any) -> Damage:
    """Change a bit of the tensor at a path of keys, or of the pickle if there is none."""

    def damage(folder: Path) -> None:
        file = folder / name
        found = read_archive(file).content
        for key in path:
            found = found[key]
        with zipfile.ZipFile(file) as archive:
            first = archive.infolist()[0].header_offset  # a pickle begins some bytes behind it
        place = found.storage.offset + found.offset + 5 if path else first + 200
        content = bytearray(file.read_bytes())
        content[place] ^= 4
        file.write_bytes(content)

    return damage


def swap(first: str, second: str, *, again: bool = False) -> Damage:
    """Give each of two files the other's name; `again`: and have each remember that it was saved so."""

    def damage(folder: Path) -> None:
        if again:
            contents = [torch.load(folder / name, weights_only=False) for name in (second, first)]
            for name, content in zip((first, second), contents, strict=True):
                torch.save(content, folder / name)
            return
        (folder / first).rename(folder / "aside")
        (folder / second).rename(folder / first)
        (folder / "aside").rename(folder / second)

    return damage


def remove(name: str) -> Damage:
    """Remove a file."""
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes = b"") -> Damage:
    """Write a file; ``../NAME`` lies beside the folder."""
    return lambda folder: (folder / name).write_bytes(content)


def copy(name: str, to: str) -> Damage:
    """Copy a file over another, or to where there is none."""
    return lambda folder: shutil.copyfile(folder / name, folder / to)


def _fifo(folder: Path) -> None:
    (folder / MODEL).unlink()
    os.mkfifo(folder / MODEL)


def _step_of_optimizer(content: Any) -> None:
    for state in content["optimizer_state_dict"]["base_optimizer_state"]["state"].values():
        state["step"] += 5


_STATES = "optimizer_state_dict"
_GROUPS = (_STATES, "single_partition_of_fp32_groups")
_CUT = (*("universal_checkpoint_info", "affine_map", "params"), r"^model\.layers\.0\.mlp\.down_proj\.weight$")
CASES = [
    Case("model cut", "stage2", cut(MODEL, 0.5), r"model_states\.pt: is damaged, cut short"),
    Case("model empty", "stage2", cut(MODEL, 0), r"model_states\.pt: is damaged, cut short"),
    Case("end of optimizer cut", "stage2", cut(OPTIMIZER.format(1), 0.99), r"rank_1.*: is damaged, cut short"),
    Case("optimizer empty", "stage2", cut(OPTIMIZER.format(0), 0), r"rank_0.*: is damaged, cut short"),
    Case("part of stage 3 cut", "stage3", cut(OPTIMIZER_BF16.format(1), 0.3), r"rank_1.*: is damaged, cut short"),
    Case(
        "bit of a model's weight",
        "stage2",
        flip(MODEL, "module", "model.norm.weight"),
        r"model_states\.pt: has (bytes|another)",
    ),
    Case(
        "bit of an optimizer's weight",
        "stage2-offload",
        flip(OPTIMIZER.format(1), *_GROUPS, 0),
        r"has (bytes|another)",
    ),
    Case(
        "bit under stage 3",
        "stage3",
        flip(OPTIMIZER_BF16.format(0), _STATES, "fp32_flat_groups", 1),
        r"rank_0.*: has changed since it was saved",
    ),
    Case(
        "bit of a part that is not trained",
        "stage3",
        flip(MODEL3.format(1), "frozen_param_fragments", "model.layers.0.mlp.up_proj.weight"),
        r"rank_1.*: has changed since it was saved",
    ),
    Case("bit of a pickle", "stage2", flip(MODEL), r"model_states\.pt: is damaged.*Bad CRC-32"),
    Case("no optimizer of rank 1", "stage2", remove(OPTIMIZER.format(1)), "optimizer states of 1 of 2 ranks: 1"),
    Case("no optimizer of rank 0", "stage2", remove(OPTIMIZER.format(0)), "optimizer states of 1 of 2 ranks: 0"),
    Case("no model", "stage2", remove(MODEL), "lacks the model states of rank 0"),
    Case("no model of rank 1", "stage3", remove(MODEL3.format(1)), "model states of 1 of 2 ranks: 1"),
    Case("no expert", "experts", remove("layer_0_expert_3_mp_rank_00_model_states.pt"), "lacks 1 of the 4 experts"),
    Case("no layer", "pipeline", remove("layer_01-model_states.pt"), r"lacks the layer with '1\.weight'"),
    Case("layers swapped", "pipeline", swap("layer_01-model_states.pt", "layer_03-model_states.pt"), "were swapped"),
    Case(
        "no stage of a pipeline",
        "pipeline",
        remove("mp_rank_01_model_states.pt"),
        "lacks the model states of mp_rank_01",
    ),
    Case(
        "tensor-parallel ranks swapped", "tensor-parallel", swap(MODEL, "mp_rank_01_model_states.pt"), "were swapped"
    ),
    Case(
        "a tensor-parallel rank of another step",
        "tensor-parallel",
        rewrite("mp_rank_01_model_states.pt", put(["global_steps"], 9)),
        "is of step 9 of 1 rank, and mp_rank_00_model_states.pt of step 2",
    ),
    Case(
        "no word on how tensors were cut",
        "tensor-parallel",
        rewrite(MODEL, put(["universal_checkpoint_info"], None)),
        "does not describe how 2 tensor-parallel ranks have divided",
    ),
    Case(
        "a cut that leaves a part out",
        "tensor-parallel",
        rewrite(MODEL, put([*_CUT, "ranks", 1, "pieces"], [])),
        "that do not fit together",
    ),
    Case(
        "empty folder",
        "stage2",
        lambda folder: [file.unlink() for file in folder.iterdir()],
        "no checkpoint of|lacks the model states",
    ),
    Case("no folder", "stage2", shutil.rmtree, r"latest: names the checkpoint 'global_step2', which does not exist"),
    Case("latest empty", "stage2", write("../latest"), "latest: is empty"),
    Case("latest elsewhere", "stage2", write("../latest", b"../../etc"), "latest: names the checkpoint"),
    Case("parts swapped", "stage2", swap(OPTIMIZER.format(0), OPTIMIZER.format(1)), "were swapped"),
    Case("parts of stage 3 swapped", "stage3", swap(MODEL3.format(0), MODEL3.format(1)), "were swapped"),
    Case("part twice", "stage3", copy(OPTIMIZER_BF16.format(0), OPTIMIZER_BF16.format(1)), "were swapped"),
    Case(
        "parts swapped and saved again",
        "stage2-offload",
        swap(OPTIMIZER.format(0), OPTIMIZER.format(1), again=True),
        "has another '.*' than .*: they are of different steps",
    ),
    Case(
        "model of another step", "stage2", rewrite(MODEL, put(["global_steps"], 1)), "is of step 2, and the model of"
    ),
    Case(
        "weights of another step",
        "stage1",
        rewrite(MODEL, put(["module", "model.norm.weight"], lambda weight: weight * 1.5)),
        r"model_states\.pt: has another 'model\.norm\.weight' than bf16_zero_pp_rank",
    ),
    Case(
        "a rank of another step", "stage2", rewrite(OPTIMIZER.format(1), _step_of_optimizer), "is of step 7, and rank"
    ),
    Case(
        "a rank's model of another step",
        "stage3",
        rewrite(MODEL3.format(1), put(["global_steps"], 4)),
        "rank_1.*: is of step 4, and rank 0's file of step 2",
    ),
    Case("world of 4", "stage2", rewrite(MODEL, put(["dp_world_size"], 4)), "is of a run of 4 ranks, but .* of 2"),
    Case("parts of 3", "stage3", rewrite(OPTIMIZER_BF16.format(0), put([_STATES, "partition_count"], 3)), "of 3"),
    Case("a rank too many", "stage2", copy(OPTIMIZER.format(1), OPTIMIZER.format(2)), "of two ranks|two runs"),
    Case(
        "two runs",
        "stage2",
        copy(OPTIMIZER.format(1), OPTIMIZER_BF16.format(1)),
        "are both of rank 1: two runs are in one folder",
    ),
    Case("a save that did not end", "stage2", write(f"{MODEL}.tmp"), "was left by an unfinished save"),
    Case("text for an archive", "stage2", write(MODEL, b"<html>404</html>"), "is damaged, cut short, or not"),
    Case("a pipe", "stage2", _fifo, "is a pipe, not a regular file"),
    Case("a file of a tensor-parallel rank", "stage2", copy(MODEL, "mp_rank_01_model_states.pt"), "were swapped"),
    Case("a file of a pipeline", "stage2", copy(MODEL, "layer_01-model_00-model_states.pt"), "were swapped"),
    Case(
        "weights in swap files",
        "stage3",
        lambda folder: (folder / "offloaded_tensors").mkdir(),
        "offloaded_tensors: has master weights in NVMe swap files",
    ),
    Case("ranks without end", "stage0", rewrite(MODEL, put(["dp_world_size"], 1 << 60)), "does not have DeepSpeed"),
    Case(
        "a parameter elsewhere",
        "stage2",
        rewrite(MODEL, put(["param_shapes", 0], lambda shapes: {"../../weight": [1]})),
        "does not have DeepSpeed's content .*a parameter '../../weight'",
    ),
    Case(
        "weights cut",
        "stage2",
        rewrite(OPTIMIZER.format(1), put([*_GROUPS, 0], lambda group: group[:-40].clone())),
        "exceeds the .* saved elements|belong to no parameter",
    ),
    Case(
        "a parameter unknown",
        "stage3",
        rewrite(MODEL3.format(0), put(["param_shapes", 0], lambda shapes: dict(list(shapes.items())[:-1]))),
        "elements that belong to no parameter|has another",
    ),
    Case(
        "nothing of the optimizer", "stage2", rewrite(OPTIMIZER.format(0), put([_STATES], None)), "no optimizer states"
    ),
    Case("no groups", "stage2", rewrite(OPTIMIZER.format(0), put(_GROUPS, None)), "does not have DeepSpeed's content"),
    Case("nothing of the model", "stage2", rewrite(MODEL, put(["module"], None)), "has no model states"),
    Case(
        "a part that is not trained is missing",
        "stage3",
        rewrite(MODEL3.format(1), put(["frozen_param_fragments"], {})),
        "does not have DeepSpeed's content",
    ),
]
