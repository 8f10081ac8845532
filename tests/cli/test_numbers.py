"""A number that no machine computes with is refused by each numeric option of each command, in one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.conftest import refused
from tests.tiny import REPOSITORY
from zerokit.cli.main import command_line
from zerokit.errors import ZerokitError
from zerokit.units import parse_bytes, parse_count

Run = Callable[..., tuple[int, str, str]]

PRESET = str(REPOSITORY / "ds_configs" / "zero2.json")
WORDS = {
    "calibrate": ["-o", "none/file"],
    "check": [PRESET],
    "checkpoint prune": ["none"],
    "checkpoint reshard": ["none", "--num-gpus", "2", "-o", "none/folder"],
    "config": ["--zero-stage", "3"],
    "diff": [PRESET, PRESET],
    "doctor": [],
    "estimate": ["gpt2", "--num-gpus", "8", "--seq-len", "128", "--zero-stage", "3"],
    "evaluate": ["none", "none.jsonl"],
    "generate": ["--model", "none", "--prompt", "a"],
    "launch-script": ["none.yaml", "--for", "slurm"],
    "plan": ["llama-3.2-1b", "--tokens", "1M", "--gpu", "h100", "--max-gpus", "1", "--rehearse", "0"],
    "quickstart": ["--output-dir", "none/folder"],
    "rehearse": ["--num-gpus", "2"],
    "resolve": [PRESET],
    "train": ["--recipe", "none.yaml"],
}
"""Required arguments and options of the commands with numeric options; no file of them exists, but one."""
INSTEAD = {"--examples": ["llama-3.2-1b", "--mean-tokens", "100", "--rehearse", "0"]}
"""In place of them, for an option that does not go with them."""
_TEXTS = {"SIZE", "[SIZE]", "TIME", "COUNT", "GBIT", "N[,N...]", "B[,B...]", "S[,S...]", "S"}
"""Metavars of options whose numbers zerokit reads itself."""
DIGITS = "9" * 400
HUGE = ["1e400", DIGITS, *(f"{DIGITS}{unit}" for unit in ("B", "GiB", "k", "h", "Gbit")), "1e999999k", f"1e{DIGITS}"]


def numeric_options() -> list[tuple[str, str]]:
    """The command and the name of each option whose value is a number."""
    root: Any = get_command(command_line())
    groups = [("", root), *((f"{name} ", one) for name, one in root.commands.items() if hasattr(one, "commands"))]
    found = []
    for prefix, group in groups:
        for name, command in group.commands.items():
            for option in command.params:
                is_option = option.param_type_name == "option"
                if is_option and (option.type_descriptor.annotation in (int, float) or option.metavar in _TEXTS):
                    found.append((prefix + name, option.opts[0]))
    return found


def test_all_of_them_are_found() -> None:
    found = numeric_options()
    assert len(found) >= 70
    assert {command for command, _ in found} == WORDS.keys()


def _case(command: str, option: str) -> Any:
    marks = pytest.mark.torch if command == "rehearse" else ()  # which asks for torch first
    return pytest.param(command, option, marks=marks)


@pytest.mark.parametrize(("command", "option"), [_case(*one) for one in numeric_options()])
def test_a_number_that_no_machine_computes_with_is_refused(zerokit: Run, command: str, option: str) -> None:
    for number in HUGE:
        script = ["none.py"] if command == "rehearse" else []
        words = INSTEAD.get(option, WORDS[command])
        line = refused(zerokit, *command.split(), *words, option, number, *script)
        assert line.startswith((f"zerokit: error: {option}: ", f"zerokit: error: Invalid value for '{option}'")), line
        assert len(line) < 250


@pytest.mark.parametrize("text", [f"1e{DIGITS}", "1e999999k", f"{DIGITS}TiB", "9999999999999999999GiB", "1e20"])
def test_sizes_and_counts_beyond_64_bits_are_refused(text: str) -> None:
    for parse in (parse_bytes, parse_count):
        with pytest.raises(ZerokitError, match=r"is too large|is not a "):
            parse(text)
