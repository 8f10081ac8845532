"""``zerokit`` forked from a process that has imported it: of a second of CPU before a rehearsal, most are imports."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tests.processes import PATIENCE, Work, exits
from tests.rehearsal import forked_worker

_IMPORTED = (
    *("zerokit.cli.main", "zerokit.cli.rehearse", "zerokit.rehearsal.parent.rehearse"),
    *("zerokit.rehearsal.parent.advice", "zerokit.rehearsal.report.tables"),
)
_server = functools.cache(functools.partial(forked_worker.start, __name__))


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], together: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run ``zerokit WORDS``, with forked workers, in a folder and an environment; `together`: stderr goes to stdout.

    Raises:
        tests.processes.HangsError: it hung and was ended.
    """
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX) as asked,
    ):
        asked.connect(_server())
        with Path(os.devnull).open() as nothing:
            streams = [stream.fileno() for stream in (nothing, out, out if together else err)]
            forked_worker.send(asked, streams, words=["zerokit", *words], cwd=str(cwd), environment=dict(env))
        work = Work([int(asked.recv(32))])
        asked.settimeout(PATIENCE)
        while True:
            try:
                code = asked.recv(32)
                break
            except TimeoutError:
                work.check(" ".join(words))
            except BaseException:
                work.end()
                raise
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read())
        assert code, f"the process was killed\n{texts[1]}"
        return subprocess.CompletedProcess(list(words), int(code), *texts)


def _work(asking: socket.socket) -> NoReturn:
    """Be the command that is asked for."""
    from zerokit.cli.main import main
    from zerokit.rehearsal.parent import processes

    os.setsid()
    asking.send(f"{os.getpid()}".encode())
    forked_worker.receive(asking)
    processes.WORKER = forked_worker.__name__

    def answer(code: int) -> NoReturn:
        asking.send(f"{code}".encode())
        os._exit(code)

    with exits(answer):
        main()
    raise AssertionError("the command leaves by itself")


if __name__ == "__main__":
    forked_worker.fork_for_each(sys.argv[1], _IMPORTED, _work)
