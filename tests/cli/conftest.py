import subprocess
import sys
from collections.abc import Callable

import pytest

from tests import processes

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


@pytest.fixture
def zerokit_process() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run ``zerokit`` as a process of its own."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", "from zerokit.cli.main import main; main()", *map(str, arguments)]
        return processes.run(command)

    return run
