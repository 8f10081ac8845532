import io
import sys
from collections.abc import Callable

import pytest

from tests.named_options import foreign_options

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def zerokit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run ``zerokit`` in this process as the console script does: exit code, stdout, stderr."""
    from zerokit.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["zerokit", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err

    return run


def refused(zerokit: Run, *arguments: object) -> str:
    """Return the one line on stderr with which a command refuses unusable input."""
    code, out, err = zerokit(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("zerokit: error: ")
    assert foreign_options(err, [str(word) for word in arguments]) == []
    return err


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a person at a terminal who writes this."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def write(text: str) -> None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", Terminal(text))

    return write
