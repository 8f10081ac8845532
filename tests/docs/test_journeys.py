"""The journeys of docs/journeys run: each block in order, in a folder with the files of the journey.

`# exits with N` at the end of a block is its exit code. Each line of the `text` block after it is in
the output, in this order; `...` is any text.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests import command_lines
from tests.combinations import REST
from tests.tiny import REPOSITORY, tiny_llama, tiny_tokenizer

PAGES = REPOSITORY / "docs/journeys"
FILES = Path(__file__).parent / "journeys"

BLOCK = re.compile(r"^```bash\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
EXIT_CODE = re.compile(r"# exits with (\d+)\s*\Z")

REHEARSES = (pytest.mark.torch, pytest.mark.rehearsal)
TRAINS = (pytest.mark.torch, pytest.mark.distributed)
JOURNEYS = {
    "renter": REHEARSES,
    "hobbyist": (*TRAINS, REST),  # what docs/getting-started.md does, and launched/test_run of an adapter
    "trl-user": REHEARSES,
    "config-keeper": (),
    "overnight": (*TRAINS, REST),  # kills and resumes, as launched/test_killed_launcher does
    "on-call": (),
    "researcher": (*TRAINS, REST),
    "programmer": (),
}


def blocks_of(name: str) -> list[tuple[str, int, str]]:
    """Command, exit code and expected lines of each block."""
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    codes = [(command, EXIT_CODE.search(command), lines or "") for command, lines in BLOCK.findall(page)]
    return [(command, int(code[1]) if code else 0, lines) for command, code, lines in codes]


def missing_line(expected: str, printed: str) -> str | None:
    """The first line of `expected` that does not follow in `printed`."""
    lines = iter([" ".join(line.split()) for line in printed.splitlines()])
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part) for part in " ".join(line.split()).split("..."))
        if line.strip() not in ("", "...") and not any(re.fullmatch(pattern, found) for found in lines):
            return line
    return None


def make_model_and_data(folder: Path) -> None:
    """`model`, and the examples that recipes name."""
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model")
    for name, numbers in (("mine", range(60)), ("new", range(60, 70))):
        rows = [{"prompt": f"What is {n} plus 1?", "completion": f" {n + 1}"} for n in numbers]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def test_each_page_is_a_journey() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == set(JOURNEYS)


def test_a_line_that_is_not_printed_is_found() -> None:
    assert missing_line("a ... c\n...\nd", "a b c\nx\n  d ") is None
    assert missing_line("d\na", "a\nd") == "a"


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, marks in JOURNEYS.items()])
def test_a_journey_runs(name: str, tmp_path: Path) -> None:
    shutil.copytree(FILES / name, tmp_path, dirs_exist_ok=True)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": "110",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if JOURNEYS[name]:
        from zerokit.distributed.extensions import own_folder

        environment |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(own_folder())}
        make_model_and_data(tmp_path)
    blocks = blocks_of(name)
    assert blocks
    for command, code, lines in blocks:
        run = command_lines.run(command, cwd=tmp_path, env=environment, together=True)
        assert run.returncode == code, f"{command}\n{run.stdout[-3000:]}"
        assert missing_line(lines, run.stdout) is None, f"{command}\n{run.stdout[-5000:]}"
