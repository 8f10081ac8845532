"""Links in the folders of others: nothing outside changes, and nothing outside is read.

The commands run in one process that is not the tests' own.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.combinations import ALL
from tests.launched.one_rank import OneRank, _group, make_folder, one_process
from tests.planted import KINDS, SECRET, Place, names_below, watched
from tests.processes import PATIENCE
from zerokit.staging import MARK

TRAIN = ("--training.save_strategy", "steps", "--training.save_steps", "1")
IN_RUN = ("--training.output_dir", "run")
RESUME = ("--training.resume_from_checkpoint", "true", "--training.max_steps", "3")
COMMANDS: dict[str, tuple[str, ...]] = {
    "export": ("checkpoint", "export", "run/checkpoint-2", "-o", "made"),
    "merge": ("checkpoint", "merge", "adapter", "-o", "made", "--base", "model"),
    "reshard": ("checkpoint", "reshard", "run/checkpoint-2", "-o", "made", "--num-gpus", "2"),
    "prune": ("checkpoint", "prune", "run", "--keep", "1", "--yes"),
    "a first run": ("train", *TRAIN),
    "a resumed run": ("train", *TRAIN, *IN_RUN, *RESUME, "--training.save_total_limit", "1"),
    "a run with --force": ("train", *TRAIN, *IN_RUN, "--force"),
    "generate": ("generate",),
}
OUTPUTS = {"made", "run", "out", "out.jsonl"}
"""What a person has named: a link there is the person's own."""


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Write the names below the current folder that are changed in the block."""
    here = Path.cwd()
    before = set(here.rglob("*"))
    with watched() as seen:
        yield
    file.write_text(json.dumps(sorted(names_below(here, seen, before))))


def command(folder: Path, words: tuple[str, ...], names: Path | None) -> str | None:
    """Run zerokit in this process, in a folder; exit code and lines of the error that ended it."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from zerokit.cli.main import command_line
    from zerokit.errors import ZerokitError
    from zerokit.generation.main import generate
    from zerokit.generation.options import Options
    from zerokit.training.main import train

    os.chdir(folder)
    os.environ["A_SECRET"] = SECRET
    watch = nullcontext() if names is None else recorded(names)
    with redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()), watch:
        try:
            if words[0] == "train":
                options = [word for word in words[1:] if word != "--force"]
                train(_group(), Path("recipe.yaml"), options, force="--force" in words)
            elif words[0] == "generate":
                few = ("--max_new_tokens", "2")
                options = Options(
                    model="model", texts=("Hi",), output=Path("out.jsonl"), force=True, sampling_words=few
                )
                generate(_group(), options, io.StringIO())
            else:
                command_line()([*words], prog_name="zerokit", standalone_mode=False)
        except ZerokitError as error:
            return "; ".join([f"{error.exit_code} {error}", *map(str, error.others)])
        finally:
            unset_hf_deepspeed_config()
    return None


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with one_process() as pool:
        yield pool


@pytest.fixture(scope="module")
def template(process: ProcessPoolExecutor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, data, an adapter, and a run of two steps with a checkpoint of each. Not to be changed."""
    folder = tmp_path_factory.mktemp("template") / "place"
    make_folder(folder)
    (folder / "adapter").mkdir()
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}
    (folder / "adapter/adapter_config.json").write_text(json.dumps(settings))
    pair = {"A": torch.ones(2, 64), "B": torch.ones(64, 2)}
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {f"{module}.lora_{name}.weight": tensor for name, tensor in pair.items()}
    save_file(weights, folder / "adapter/adapter_model.safetensors")
    done = OneRank(folder, process).train(*TRAIN, *IN_RUN, "--training.max_steps", "2")
    assert done.error is None
    return folder


def rounds(names: set[str], *, all_depths: bool) -> Iterator[tuple[set[str], int]]:
    """Names to plant at, at one time, and the number of the kind that the first one gets."""
    by_depth: dict[int, set[str]] = {}
    for name in names:
        by_depth.setdefault(name.count("/"), set()).add(name)
    top, *below = [by_depth[depth] for depth in sorted(by_depth)]
    # Each name gets another kind in each round; a round of the slow commands is some runs.
    for first in range(len(KINDS)) if all_depths or ALL else (0, 2):
        yield top, first
    if all_depths:
        yield from ((some, first) for some in below for first in range(len(KINDS)))
    else:  # what has nothing in it
        deep = set().union(*below)
        yield {name for name in deep if not any(other.startswith(f"{name}/") for other in deep)}, 0


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_outside_changes(name: str, template: Path, process: ProcessPoolExecutor, tmp_path: Path) -> None:
    place = Place(tmp_path)

    def run(names: Path | None = None) -> str | None:
        return process.submit(command, place.path, COMMANDS[name], names).result(timeout=PATIENCE)

    found = []
    for number in range(2):
        place.make(template)
        assert run(tmp_path / f"{number}.json") is None
        found.append(set(json.loads((tmp_path / f"{number}.json").read_text())))
    # A folder to be made that is not empty is refused.
    names = {name for name in found[0] & found[1] if name not in OUTPUTS and not name.startswith("made/")}
    assert names
    marked = {name.removesuffix(f"/{MARK}") for name in names}
    for some, first in rounds(names, all_depths=name in ("export", "merge", "reshard", "prune")):
        place.make(template)
        place.plant(some, first, marked)
        before = place.outside()
        while (error := run()) is not None:
            assert place.outside() == before
            assert error.startswith("2 "), error
            # A report of an earlier run is refused without its name.
            assert place.give_way(error) or place.give_way("run.json"), error
        assert place.outside() == before
        assert place.leaks() == []


READS: dict[str, tuple[str, tuple[str, ...]]] = {
    "verify": ("run/checkpoint-2", ("checkpoint", "verify", "run/checkpoint-2")),
    "show": ("run/checkpoint-2", ("checkpoint", "show", "run/checkpoint-2")),
    "diff": ("run/checkpoint-2", ("checkpoint", "diff", "run/checkpoint-1", "run/checkpoint-2")),
    "export": ("run/checkpoint-2", COMMANDS["export"]),
    "export with --base": ("model", (*COMMANDS["export"], "--base", "model")),
    "reshard": ("run/checkpoint-2", COMMANDS["reshard"]),
    "merge, adapter": ("adapter", COMMANDS["merge"]),
    "merge, model": ("model", COMMANDS["merge"]),
    "diff of models": ("model", ("checkpoint", "diff", "model", "run")),
    "estimate": ("model", ("estimate", "model", "--num-gpus", "2", "--zero-stage", "2", "--seq-len", "8")),
    "train": ("model", ("train", "--training.output_dir", "new")),
    "resume": ("run/checkpoint-2", ("train", *IN_RUN, RESUME[0], "run/checkpoint-2")),
    "generate": ("model", COMMANDS["generate"]),
}
"""Name -> the folder that it reads, and the command."""
READ = {
    "diff of models": r"model\.safetensors",
    "estimate": r"config\.json",
    "export with --base": r".*(?<!safetensors)",
}
"""What is read of the folder, by name, where that is not all of it."""


@pytest.mark.parametrize("name", READS)
def test_nothing_outside_is_read(name: str, template: Path, process: ProcessPoolExecutor, tmp_path: Path) -> None:
    place, outside = tmp_path / "place", tmp_path / "outside"
    folder, words = READS[name]
    shutil.copytree(template, place)
    outside.mkdir()
    (place / folder / "tokenizer.notes").touch()  # which merge and export copy
    files = sorted(path for path in (place / folder).rglob("*") if path.is_file())
    read = [path for path in files if re.fullmatch(READ.get(name, ".*"), path.name)]
    assert read
    for number, path in enumerate(read):
        path.rename(outside / path.name)
        if number % 2:
            os.mkfifo(path)
        else:
            path.symlink_to(outside / path.name)
        error = process.submit(command, place, words, None).result(timeout=PATIENCE)
        assert error is not None, path
        assert error.startswith("2 "), error
        assert path.name in error
        assert not (place / "made").exists()
        path.unlink()
        (outside / path.name).rename(path)
