"""What a line alone means, in the words that libraries, launchers and schedulers print."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.exits.explained import explain
from tests.json_data import load_json
from zerokit.exits import causes
from zerokit.exits.explain import Explanation

LINES = load_json("exits/lines.json")
"""Each line with the id of its cause, and a part of the message."""
LIBRARY_LINES = load_json("exits/library_lines.json")
"""Last lines of tracebacks, in the same form."""
TRACEBACK = ("Traceback (most recent call last):", '  File "/w/train.py", line 7, in <module>', "    main()")
DEEPSPEED = load_json("exits/deepspeed_lines.json")
"""Errors of DeepSpeed 0.15.4, 0.17.6 and 0.19.8, with their files, by row of `deepspeed_errors.json`."""


@pytest.mark.parametrize("row", LINES, ids=lambda row: row["line"][:60])
def test_line_has_its_cause(row: dict[str, str]) -> None:
    expect(row, explain(row["line"]), 2)


@pytest.mark.parametrize("row", LIBRARY_LINES, ids=lambda row: row["line"][:90])
def test_library_error_has_its_cause(row: dict[str, str]) -> None:
    expect(row, explain(*TRACEBACK, row["line"]), 5)


@pytest.mark.parametrize(
    "line",
    [
        "ValueError: Network Adapter eth0 not found",
        "FileNotFoundError: Unable to find '/usr/bin/nvcc'",
        "FileNotFoundError: Directory /scratch not found",
        "KeyError: 'prompt'",
        "ValueError: unknown split of the pipeline",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 0x768)",
        "ValueError: our service does not support DoRA's format",
        "ConnectionError: Couldn't reach the database",
    ],
)
def test_exceptions_of_other_programs_get_no_cause(line: str) -> None:
    assert explain(*TRACEBACK, line).cause == "exception"


def test_what_a_library_passes_on_is_explained_by_the_exception_above_it() -> None:
    found = explain(
        *TRACEBACK,
        "pyarrow.lib.ArrowInvalid: JSON parse error: Column(/text) changed from string to array in row 3",
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *TRACEBACK,
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
    )
    assert (found.cause, found.line) == ("dataset-rows", 5)


@pytest.mark.parametrize(
    ("cause", "key", "why"),
    [
        ("config-value", "stage", "Input should be less than or equal to 3 [type=less_than_equal, input_value=7]"),
        (
            "config-fraction",
            "stage3_prefetch_bucket_size",
            "Input should be a valid integer, got a number with a fractional part [type=int_from_float]",
        ),
        ("config-key", "stage3_prefetch_buckets", "Extra inputs are not permitted [type=extra_forbidden]"),
    ],
)
def test_a_wrong_value_of_a_ds_config_is_not_taken_for_an_unknown_key(cause: str, key: str, why: str) -> None:
    error = "pydantic_core._pydantic_core.ValidationError: 1 validation error for DeepSpeedZeroConfig"
    found = explain(*TRACEBACK, error, key, f"  {why}")
    assert (found.cause, key in found.message) == (cause, True)


def expect(row: dict[str, str], found: Explanation, line: int) -> None:
    assert (found.cause, row.get("message", "") in found.message) == (row["cause"], True), found.message
    assert found.line == line
    assert found.text == " ".join(row["line"].split())
    assert not re.search(r"\{\w+\}|<[A-Z_]+>", f"{found.message} {found.fix}".replace("{'': local_rank}", ""))


def traceback(file: str, error: str) -> list[str]:
    """A traceback whose last frame is in a file; a bare assertion is its source line."""
    kind, _, text = error.partition(": ")
    source, error = (text, kind) if text.startswith("assert ") else ("raise error", error)
    frames = (("/w/train.py", "main()"), (file, source))
    lines = [f'  File "{name}", line 7, in main\n    {code}' for name, code in frames]
    return ["Traceback (most recent call last):", *lines, error]


@pytest.mark.parametrize("row", DEEPSPEED, ids=lambda row: f"{row['cause']}: {row['message'][:50]}")
def test_error_of_deepspeed_has_its_cause(row: dict[str, Any]) -> None:
    for file, error in row["raised"]:
        found = explain(*traceback(f"/v/lib/python3.11/site-packages/{file}", error))
        assert (found.cause, row["message"] in found.message) == (row["cause"], True), (error, found.message)
        assert found.fix is not None
        assert "/w/train.py" not in found.fix
        assert not re.search(r"\{\w+\}", found.message + found.fix)


def test_each_row_of_deepspeed_errors_has_an_error() -> None:
    table = json.loads(Path(causes.__file__).with_name("deepspeed_errors.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in table["causes"]] == [row["cause"] for row in DEEPSPEED if row["raised"]]


@pytest.mark.parametrize(
    "file", ["/opt/DeepSpeed/deepspeed/runtime/config.py", None], ids=["checkout", "no traceback"]
)
def test_error_of_deepspeed_is_known_without_a_package(file: str | None) -> None:
    error = "AssertionError: bfloat16 and fp16 modes cannot be simultaneously enabled"
    assert explain(*(traceback(file, error) if file else [error])).cause == "two-precisions"


@pytest.mark.parametrize(
    "error",
    [
        "AssertionError: 7 is not divisible by 2",
        "ValueError: expecting a tensor or a tuple of tensors",
        "AssertionError: loss must be a scalar tensor",
        "ValueError: preset_model is unknown",
        "AssertionError: assert torch.is_tensor(x)",
    ],
)
@pytest.mark.parametrize("file", ["/w/model.py", "/v/lib/python3.11/site-packages/other/model.py"])
def test_same_words_of_another_program_are_no_error_of_deepspeed(file: str, error: str) -> None:
    assert explain(*traceback(file, error)).cause == "exception"
