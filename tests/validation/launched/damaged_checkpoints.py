"""What `verify` and `export` say of damaged checkpoints, and of those with code in them.

``python -m tests.validation.launched.damaged_checkpoints`` has two ranks save checkpoints, damages them in
all ways of :data:`tests.validation.launched.damage.CASES`, puts each of `PAYLOADS` into files of each
format, and rewrites results/damaged_checkpoints.json. tests/launched/test_checkpoints.py tries the same.
"""

from __future__ import annotations

import json
import pickle
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.tiny import REPOSITORY, launch
from tests.validation.launched.damage import CASES, MODEL, OPTIMIZER_BF16, Case
from zerokit.checkpoint.deepspeed_folder import read_checkpoint
from zerokit.checkpoint.export import export
from zerokit.checkpoint.verify import verify
from zerokit.errors import CheckpointError

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "damaged_checkpoints.json"
STEP = "global_step2"
PAYLOADS = {
    "posix.system": b"cposix\nsystem\n(S'touch %s'\ntR.",
    "os.system": b"\x80\x04\x8c\x02os\x8c\x06system\x93(S'touch %s'\ntR.",
    "builtins.eval": b'c__builtin__\neval\n(S\'open("%s", "w")\'\ntR.',
    "builtins.exec": b'cbuiltins\nexec\n(S\'open("%s", "w")\'\ntR.',
    "builtins.getattr": b"cbuiltins\ngetattr\n(cposix\nsystem\nS'__call__'\ntR(S'touch %s'\ntR.",
    "subprocess.Popen": b"csubprocess\nPopen\n((S'touch'\nS'%s'\nltR.",
    "runpy.run_path": b"crunpy\nrun_path\n(S'%s'\ntR.",
    "torch.storage.os.system": b"\x80\x04\x8c\x0dtorch.storage\x8c\x09os.system\x93(S'touch %s'\ntR.",
    "shutil.copy": b"(S'/etc/hostname'\nS'%s'\nishutil\ncopy\n.",
    "pathlib.Path.touch": b"\x80\x04\x8c\x07pathlib\x8c\nPath.touch\x93(S'%s'\ntR.",
    "torch.utils.cpp_extension.load": b"ctorch.utils.cpp_extension\nload\n(S'%s'\ntR.",
    "functools.partial": b"cfunctools\npartial\n(cposix\nsystem\nS'touch %s'\ntR)R.",
}
"""Pickles that make a file, or try to, by the name that has to be refused."""


def _in_archive(file: Path, pickled: bytes) -> None:
    with zipfile.ZipFile(file) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for name, content in members.items():
            new.writestr(name, pickled if name.endswith("/data.pkl") else content)


def _plain(file: Path, pickled: bytes) -> None:
    file.write_bytes(b"\x80\x02" + pickled.removeprefix(b"\x80\x04"))


def _legacy(file: Path, pickled: bytes) -> None:
    """As torch before 1.6 wrote it: a magic number, a version and the machine come first."""
    with file.open("wb") as opened:
        for first in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(first, opened, protocol=2)
        opened.write(pickled)


PLACES: dict[str, tuple[str, Callable[[Path, bytes], None]]] = {
    "model": (MODEL, _in_archive),
    "plain": (OPTIMIZER_BF16.format(1), _plain),
    "legacy": (OPTIMIZER_BF16.format(0), _legacy),
    "expert": ("layer_0_expert_2_mp_rank_00_model_states.pt", _in_archive),
    "of the Trainer": ("../scheduler.pt", _legacy),
}
"""Where code is put, and how it is written there."""


def save_runs(folder: Path) -> None:
    """Have two ranks save a checkpoint for each of `checkpoint_runs.RUNS`."""
    script = REPOSITORY / "tests/launched/save_checkpoints.py"
    done = launch([script, folder], ranks=2, launcher="none", env={"PYTHONPATH": str(REPOSITORY)})
    assert done.returncode == 0, done.stderr


def damaged(case: Case, saved: Path, folder: Path) -> dict[str, Any]:
    """What is said of a damaged checkpoint, and what is wrong with that.

    Args:
        case: the damage.
        saved: from :func:`save_runs`.
        folder: an empty one.
    """
    shutil.copytree(saved / case.run, folder / "run")
    case.damage(folder / "run" / STEP)
    looks = {"verify": verify, "export": partial(export, output=folder / "model", needs_config=False)}
    said, wrong = _said(looks, case.said, folder)
    return {"damage": case.name, "checkpoint": case.run, "said": said, "wrong": wrong}


def hostile(name: str, where: str, saved: Path, folder: Path) -> dict[str, Any]:
    """What is said of a checkpoint with code in it; arguments as for :func:`damaged`.

    Args:
        name: of `PAYLOADS`.
        where: of `PLACES`.
    """
    place, embed = PLACES[where]
    shutil.copytree(saved / "experts", folder / "run")
    (folder / "run/trainer_state.json").write_text("{}")
    embed(folder / "run" / STEP / place, PAYLOADS[name].replace(b"%s", bytes(folder / "mark")))
    looks: dict[str, Callable[[Path], object]] = {"verify": verify}
    if not place.startswith(".."):
        more = partial(export, output=folder / "model", needs_config=False)
        looks |= {"show": read_checkpoint, "export": more}
    refused = rf"its pickle would load '({re.escape(name)}|posix\.system)'"
    said, wrong = _said(looks, refused, folder)
    return {"damage": f"code: {name}", "checkpoint": where, "said": said, "wrong": wrong}


def _said(looks: dict[str, Callable[[Path], object]], expected: str, folder: Path) -> tuple[str, list[str]]:
    """The first line that is said, and what is wrong: another answer, or a file that there must not be."""
    lines, wrong = [], []
    for name, look in looks.items():
        try:
            look(folder / "run")
        except CheckpointError as error:
            lines.append(str(error).replace(str(folder), "..."))
            if error.exit_code != 2 or "\n" in lines[-1] or not re.search(expected, lines[-1]):
                wrong.append(f"{name} says {lines[-1]}")
        else:
            wrong.append(f"{name} takes it")
        if left := sorted(path.name for path in folder.iterdir() if path.name != "run"):
            wrong.append(f"{name} leaves {left}")
    return (lines or [""])[0], wrong


def _rows(saved: Path) -> Iterator[dict[str, Any]]:
    for case in CASES:
        with TemporaryDirectory() as folder:
            yield damaged(case, saved, Path(folder))
    for where in PLACES:
        for name in PAYLOADS:
            with TemporaryDirectory() as folder:
                yield hostile(name, where, saved, Path(folder))


def main() -> None:
    with TemporaryDirectory() as saved:
        save_runs(Path(saved))
        rows = list(_rows(Path(saved)))
    for row in rows:
        print(f"{row['damage']}, {row['checkpoint']}: {row['said']} {row['wrong'] or ''}")
    WRITTEN.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
