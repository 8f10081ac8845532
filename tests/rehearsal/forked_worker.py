"""The rehearsal's worker, forked from a process that has imported what a rehearsal leaves as it is.

Of the four to seven seconds of CPU that a short rehearsal of a rank takes, most are imports. `python -m
tests.rehearsal.forked_worker JOB` has a server fork a worker, which sets the virtual cluster up, imports
DeepSpeed and runs the script, all as the real one does. What it lacks is the overlay over people's files and
a start from nothing: what is about those, or compiled, goes through the real worker.

`python -m tests.rehearsal.forked_worker -m MODULE WORDS` runs a module that sets a virtual cluster up itself.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

SOCKET = "ZEROKIT_TEST_WORKERS"
"""The variable that names the server's socket."""
_IMPORTED = (
    *("torch", "torch._dynamo", "torch._inductor.compile_fx", "torch.distributed.fsdp"),
    *("torch.distributed.tensor", "datasets", "networkx", "pandas", "sympy"),
    *("transformers.configuration_utils", "transformers.generation.configuration_utils"),
    *("transformers.models", "transformers.tokenization_utils_base", "zerokit.rehearsal.worker.run"),
)
"""Of what a rehearsal replaces, these keep only the streams that Dynamo compiles for."""
_STREAMS = (0, 1, 2)
_MOST_BYTES = 2**20
_kept: list[Any] = []


@functools.cache
def server() -> str:
    """The socket of a server of workers that ends with this process."""
    return start(__name__)


def start(module: str) -> str:
    """Start the server that ``python -m MODULE SOCKET serve`` is, and return its socket; it ends with this process."""
    folder = tempfile.TemporaryDirectory()
    path = str(Path(folder.name, "socket"))
    process = subprocess.Popen(
        [sys.executable, "-m", module, path, "serve"],
        stdin=subprocess.PIPE,  # which closes as this process ends
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads do not outlive a fork
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    _kept.extend((process, folder))
    return path


def ask(*, real: bool = False) -> NoReturn:
    """Have the job of the command line run, and leave as its worker does.

    Args:
        real: whether as by :mod:`tests.validation.rehearsal.real_worker`.
    """
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(os.environ[SOCKET])
        send(asked, _STREAMS, words=sys.argv, cwd=str(Path.cwd()), environment=dict(os.environ), real=real)
        os._exit(int(asked.recv(_MOST_BYTES)))  # a worker that was killed has said nothing


def _serve(path: str) -> NoReturn:
    """Fork a worker for each job."""
    from zerokit.rehearsal.native import backend

    backend.load()  # before torch
    fork_for_each(path, _IMPORTED, _work)


def fork_for_each(path: str, imported: Iterable[str], work: Callable[[socket.socket], NoReturn]) -> NoReturn:
    """Import modules, and have a fork of this process do `work` for each connection to a socket."""
    for name in imported:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print("ready", flush=True)
        while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
            asking, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work(asking)
            asking.close()
    os._exit(0)


def send(asked: socket.socket, streams: Sequence[int], **request: Any) -> None:
    """Ask for a process with `streams` as its first ones: its words, cwd and environment, and what its work reads."""
    socket.send_fds(asked, [json.dumps(request).encode()], streams)
    asked.shutdown(socket.SHUT_WR)


def receive(asking: socket.socket) -> Any:
    """The request that :func:`send` has sent; its streams, folder and environment become those of this process."""
    text, streams, _, _ = socket.recv_fds(asking, _MOST_BYTES, len(_STREAMS))
    while more := asking.recv(_MOST_BYTES):
        text += more
    for stream, number in zip(streams, _STREAMS, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    request = json.loads(text)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = request["words"]
    return request


def _work(asking: socket.socket) -> NoReturn:
    """Be the worker of the job that is asked for."""
    from tests.processes import exits
    from tests.validation.rehearsal import real_worker
    from zerokit.rehearsal import process_setup
    from zerokit.rehearsal.worker import run as worker

    request = receive(asking)
    process_setup.is_running = lambda: False  # torch was imported after the library, as it has to be
    leave = worker._leave

    def answer(code: int) -> NoReturn:
        asking.send(f"{code}".encode())
        leave(code)

    if request["words"][1] == "-m":
        sys.argv = request["words"][2:]
        with exits(answer):
            runpy.run_module(sys.argv[0], run_name="__main__")
            sys.exit()
    worker._leave = answer
    if request["real"]:
        real_worker.use_real_values()
    worker.main()
    raise AssertionError("a worker leaves by itself")


if __name__ == "__main__":
    _serve(sys.argv[1]) if sys.argv[2:] == ["serve"] else ask()
