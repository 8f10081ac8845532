"""What can be a name on the Hub, asked by models, checkpoints and data sets alike."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import zerokit
from zerokit.hub import describe_failure, failure_reason, is_hub_id

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
    assert failure_reason(error).strip() == words


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (TimeoutError("timed out"), "timed out"),
    ],
)
def test_a_hub_out_of_reach_is_said_in_the_words_of_the_system(cause: Exception, words: str) -> None:
    wrapped = FileNotFoundError("Got: ConnectError: [Errno -2] ...")
    wrapped.__cause__ = RuntimeError()
    wrapped.__cause__.__context__ = cause
    assert failure_reason(wrapped) == describe_failure(wrapped) == f"the Hub cannot be reached ({words})"
    on_disk = PermissionError(13, "Permission denied", "cache")
    assert describe_failure(on_disk, "them").startswith("the Hub did not give them: [Errno 13]")
