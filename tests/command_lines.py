"""Command lines of pages: `zerokit` that starts no ranks runs in this process or in a fork, which spares imports."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from tests import processes
from tests.rehearsal import forked_command, forked_worker
from zerokit import console

_IN_PROCESS = {
    *("check", "checkpoint", "config", "diff", "estimate", "explain", "explain-exit", "launch-script", "plan"),
    *("resolve", "schema"),
}
_OF_A_SHELL = set("|&;<>$`*\n")


def run(line: str, *, cwd: Path, env: Mapping[str, str], together: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a line as bash does, in a folder and an environment; `together` as of :func:`tests.processes.run`."""
    words = shlex.split(line, comments=True)
    is_plain = words[0] == "zerokit" and not _OF_A_SHELL & set(line.strip())
    if is_plain and words[1] == "rehearse":
        forking = {**env, forked_worker.SOCKET: forked_worker.server()}
        return forked_command.run(words[1:], cwd=cwd, env=forking, together=together)
    if not is_plain or words[1] not in _IN_PROCESS:
        return processes.run(["bash", "-e", "-c", line], cwd=cwd, env=env, together=together)
    from zerokit.cli.main import main

    out = io.StringIO()
    err = out if together else io.StringIO()
    variables = mock.patch.dict(os.environ, env)
    console.stdout.cache_clear()
    console.stderr.cache_clear()
    with variables, chdir(cwd), mock.patch.object(sys, "argv", words), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, out.getvalue(), "" if together else err.getvalue())
