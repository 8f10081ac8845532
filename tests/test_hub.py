"""What can be a name on the Hub, asked by models, checkpoints and data sets alike."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerokit
from zerokit.hub import is_hub_id, reason

PACKAGE = Path(zerokit.__file__).parent


@pytest.mark.parametrize("name", ["gpt2", "org/name", "org/name-1.5_b", "0/0"])
def test_names(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["", "/x", "./x", "../x", "~/x", "a/b/c", "a/", "/a", "a b", "-a", "org/.x", "a\n", "a:b"]
)
def test_no_names(name: str) -> None:
    assert not is_hub_id(name)


def test_the_pattern_stands_once() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if r"[A-Za-z0-9][\w.-]*" in file.read_text()]
    assert [file.name for file in files] == ["hub.py"]


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError("no network\nmore"), "no network"), (OSError("\n 404 \n"), "404"), (OSError(), "OSError")],
)
def test_a_reason_is_one_line(error: Exception, words: str) -> None:
    assert reason(error).strip() == words
