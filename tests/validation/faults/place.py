"""The place of a trial: a folder with what a user has, the run that starts there, and its processes."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.processes import exits
from tests.tiny import ONE_STEP_RECIPE, REPOSITORY, tiny_llama, tiny_tokenizer
from zerokit.distributed.launcher_watch import is_launcher
from zerokit.distributed.process_table import children_of, stat_of, variables_of
from zerokit.distributed.ranks import free_port

USERS = ("model", "data.jsonl", "recipe.yaml", "prompts.jsonl")
PROMPTS = 4
_CLONE_NEWNS = 0x20000
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_reaper() -> None:
    """Have all processes that lose their parent become this one's children: none escapes the count."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Forked:
    """A forked process, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


Started = Forked | subprocess.Popen[bytes]


@dataclass
class Place:
    """The folder of one trial, with a model, data and a recipe, and how to start the run there."""

    folder: Path
    words: list[str] = field(default_factory=list)
    """Options of the run."""
    command: str = "train"
    ranks: int = 1
    num_gpus: bool = False
    """Whether two ranks are started by ``zerokit``, not by DeepSpeed's launcher itself."""
    shell: str = ""
    """What a shell does before, in a namespace with mounts of its own."""
    port: int = field(default_factory=free_port)
    variables: dict[str, str] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        return self.folder / name

    def start(self, output: Path) -> Started:
        """Start it: one rank as a fork of this process, which has imported all; more by a launcher."""
        own = {
            "train": ["--recipe", "recipe.yaml"],
            "generate": ["--model", "model", "--prompts", "prompts.jsonl", "-o", "out.jsonl"],
        }
        words = [*own.get(self.command, ()), *self.words]
        variables = {**self.variables, "ZEROKIT_DRILL": str(self.folder)}
        if self.ranks == 1:
            pid = os.fork()
            if pid == 0:
                self._become(words, variables, output)
            return Forked(pid)
        script = str(REPOSITORY / "launch" / f"{self.command}.py")
        launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(self.ranks)]
        command = [*launcher, "--master_port", str(self.port), script, *words]
        if self.num_gpus:
            starter = [sys.executable, "-m", "zerokit", self.command, "--num-gpus", str(self.ranks)]
            command = [*starter, "--master-port", str(self.port), *words]
        if self.shell:
            command = ["unshare", "--mount", "sh", "-c", f'{self.shell} && exec "$@"', "sh", *command]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        cache = {"HF_DATASETS_CACHE": str(self.path("cache")), "PATH": path}
        with output.open("wb") as stream:
            return subprocess.Popen(
                command, cwd=self.folder, env={**os.environ, **cache, **variables},
                stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _become(self, words: list[str], variables: dict[str, str], output: Path) -> None:
        with exits():
            os.setsid()
            os.chdir(self.folder)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(variables)
            if self.shell:
                assert _LIBC.unshare(_CLONE_NEWNS) == 0, os.strerror(ctypes.get_errno())
                subprocess.run(["mount", "--make-rprivate", "/"], check=True)
                subprocess.run(["sh", "-ec", self.shell], check=True)
                os.chdir(self.folder)
            import datasets

            from zerokit.cli.main import main

            datasets.config.HF_DATASETS_CACHE = self.path("cache")
            sys.argv = [f"launch/{self.command}.py", *words]
            # The last: a run that prepares is told by its output, and is struck at once.
            for number in (1, 2):
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
            main(self.command)


def import_all() -> None:
    """Import what runs import, and no more: nothing is made that a fork would share."""
    variables = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ.update(variables)
    from zerokit.distributed.libraries import set_up_libraries
    from zerokit.distributed.ranks import Ranks

    set_up_libraries(Ranks())
    import zerokit.generation.engine
    import zerokit.training.prepare
    import zerokit.training.run
    import zerokit.training.trainer  # noqa: F401


def in_fork(action: Callable[[], object]) -> None:
    """Do it in a process of its own, so that this one starts no threads."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            action()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def prepare(folder: Path) -> None:
    """Write what a user has: a model, data, a recipe of one step, and prompts."""
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model")
    lines = [json.dumps({"prompt": f"What is {n}?", "completion": f"A number, {n}."}) for n in range(64)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "What is {n}?"}}\n' for n in range(PROMPTS)))
    (folder / "recipe.yaml").write_text(ONE_STEP_RECIPE + "  report_to: []\n  disable_tqdm: true\n")


def digests(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of the user's files."""
    files = [file for name in USERS for file in (folder / name, *folder.joinpath(name).rglob("*"))]
    status = {str(file): file.lstat() for file in files if os.path.lexists(file)}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in status.items()}


def processes() -> list[int]:
    """All processes that come of this one and live, in order of birth."""
    return sorted(_living(os.getpid()))


def _living(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        stat = stat_of(child)
        if stat is not None and stat.state not in "ZX":
            yield child
        yield from _living(child)


def rank_processes() -> list[int]:
    """Those that are ranks, not launchers nor what ranks have started, in order of birth."""
    found = [pid for pid in processes() if "LOCAL_RANK" in variables_of(pid)]
    stats = {pid: stat_of(pid) for pid in found}
    return [pid for pid, stat in stats.items() if stat is not None and stat.parent not in found]


def launcher_processes() -> list[int]:
    """``zerokit``, if it started them, and DeepSpeed's two launchers, in order of birth."""
    return [pid for pid in processes() if is_launcher(pid) and "LOCAL_RANK" not in variables_of(pid)]


def end_all() -> None:
    """End what is left, and forget it."""
    for pid in processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def wait_until(happened: Callable[[], bool], seconds: float, poll: float = 0.02) -> bool:
    """Look again and again."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(poll)
    return True
