"""Ranks forked from a process that has imported the libraries: they share the start, and nothing else.

Of the ten seconds of CPU that a short run on two ranks takes, eight are imports. A forked rank has the words,
the environment, the folder and the exit that a launcher would give it. What is about launchers, signals, or
variables that libraries read as they are imported needs a launcher.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from tests.processes import PATIENCE, Work

_IMPORTED = [
    "accelerate.utils.deepspeed",
    "datasets",
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "deepspeed.runtime.zero.stage3",
    "peft",
    "transformers.integrations.deepspeed",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
    "zerokit.cli.generate",
    "zerokit.cli.main",
    "zerokit.cli.train",
    "zerokit.generation.main",
    "zerokit.training.run",
]
_FORKS: Any = multiprocessing.get_context("forkserver")


def run(
    words: Sequence[str], *, ranks: int, port: int, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script on `ranks` ranks of one node and return the first exit code that is not 0, and all output.

    Args:
        words: the script's file and its options.
        ranks: how many processes.
        port: where they meet.
        cwd: the folder to run in.
        env: the whole environment, but for what tells the ranks apart.

    Raises:
        tests.processes.HangsError: they hung and were ended.
    """
    _ensure_running(env)
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        streams = [f"/proc/{os.getpid()}/fd/{stream.fileno()}" for stream in (stdout, stderr)]
        processes = []
        for rank in range(ranks):
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            its = {**env, **{name: str(value) for name, value in {**place, **meeting}.items()}}
            processes.append(_FORKS.Process(target=_rank, args=(list(words), str(cwd), its, streams)))
        for process in processes:
            process.start()
        work = Work([process.pid for process in processes])
        waiting = {process.sentinel: process for process in processes}
        code = 0
        try:
            while waiting:
                ended = wait(list(waiting), timeout=PATIENCE)
                if not ended:
                    work.check(" ".join(words))
                for sentinel in ended:
                    waiting.pop(sentinel).join()
                failed = [process.exitcode for process in processes if process.exitcode]
                if failed and not code:  # as a launcher does
                    code = failed[0]
                    for process in waiting.values():
                        process.terminate()
        finally:
            work.end()
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read())
        return subprocess.CompletedProcess(list(words), code, *texts)


def one_process(env: Mapping[str, str]) -> ProcessPoolExecutor:
    """A process with the given environment that makes one call after the other."""
    _ensure_running(env)
    return ProcessPoolExecutor(1, mp_context=_FORKS, initializer=_set_environment, initargs=(dict(env),))


def _ensure_running(env: Mapping[str, str]) -> None:
    _FORKS.set_forkserver_preload(_IMPORTED)
    with mock.patch.dict(os.environ, env):
        forkserver.ensure_running()


def _set_environment(env: Mapping[str, str]) -> None:
    # The processes of data loaders are forked, as those of a rank that a launcher starts: this one's own way
    # would have each import torch.
    multiprocessing.set_start_method(None, force=True)
    gc.freeze()  # what is imported by now is not looked through, nor copied, as garbage is collected
    os.environ.clear()
    os.environ.update(env)


def _rank(words: list[str], cwd: str, env: dict[str, str], streams: list[str]) -> NoReturn:
    """Run the script in this process, and leave it as Python leaves a script's."""
    for number, file in enumerate(streams, start=1):
        stream = os.open(file, os.O_WRONLY | os.O_APPEND)
        os.dup2(stream, number)
        os.close(stream)
    _set_environment(env)
    os.chdir(cwd)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).absolute().parent)
    code: Any = 0
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    from zerokit.distributed.group import leave

    leave(code or 0)
