"""Ways to die, as a table: what is done, under which launcher, and what must be told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

_TRAINS = """\
import ctypes, datetime, mmap, os, signal, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=LIMIT))
rank, sums = dist.get_rank(), torch.ones(4)

def train(steps=10**9):
    for step in range(steps):
        dist.all_reduce(sums.fill_(1))
        if rank == 0 and step < 3:
            print(f"step {step} loss=1.0", flush=True)

def main():
    train(3)
    print("ready", flush=True)
DIES
    train()

main()
"""
"""A script of two ranks that meet in a collective at each step, with `DIES` at its place."""
_ENGINE = """\
import sys
import torch
import deepspeed

def main():
    model = torch.nn.Linear(4, 4)
    adam = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": adam, **CONFIG}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
DIES

main()
"""


@dataclass(frozen=True)
class Death:
    """A way to die.

    Args:
        name: of the row.
        launcher: ``deepspeed``, ``torchrun``, ``accelerate``, ``zerokit`` (its train) or ``python``.
        cause: a regular expression for what explain-exit must call it.
        says: a regular expression for its line and its fix.
        dies: Python that rank 1, or each, runs between two steps.
        script: around `dies`; for zerokit, options of the run.
        limit: seconds of a collective.
        ranks: how many.
        shell: what a shell does before, with mounts of its own.
        before: words before the launcher's.
        ready: a regular expression for what the log has when the ranks are in the middle; None: the
            processes have nothing more to do.
        often: how many times the log then has it.
        strikes: the signal that then `struck` gets: ``launcher``, or ``rank N``.
        groups: files of a control group of its own, and what is written to them.
        takes_port: whether another process has the port.
    """

    name: str
    launcher: str
    cause: str
    message: str
    dies: str = "pass"
    script: str = _TRAINS
    options: tuple[str, ...] = ()
    limit: int = 60
    ranks: int = 2
    shell: str = ""
    before: tuple[str, ...] = ()
    ready: str | None = r"(?<!al)ready"  # two ranks may print "readyready"
    often: int = 2
    strikes: signal.Signals | None = None
    struck: str = "launcher"
    groups: tuple[tuple[str, str], ...] = ()
    takes_port: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether it needs mounts, processes and limits of its own, as only root may have them."""
        return bool(self.shell or self.strikes or self.groups)

    @property
    def source(self) -> str:
        """The script."""
        lines = "\n".join(f"    {line}" for line in self.dies.splitlines())
        return self.script.replace("LIMIT", str(self.limit)).replace("DIES", lines)


def _on_rank_1(line: str) -> str:
    return f"if rank == 1:\n    {line}"


_PLAIN = ("deepspeed", "torchrun", "accelerate")
_KILLED = r"SIGKILL.*killed from outside"
_FULL_SHM = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
_MAPS = """\
file = open("/dev/shm/deaths", "w+b")
file.truncate(8 << 20)
mapped = mmap.mmap(file.fileno(), 8 << 20)
mapped.write(b"x" * (8 << 20))"""
_LOADS = """\
data = [torch.ones(1 << 20) for _ in range(8)]
for batch in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
    pass"""


_OWN = "export TORCH_EXTENSIONS_DIR=$PWD/own && mkdir -p own"
"""A folder for extensions in which nothing is compiled yet."""


def _compilers() -> Iterator[tuple[str, str, str, str]]:
    """Compilers that fail: name, cause, what is said, and what a shell does before."""

    def calls(line: str) -> str:
        return f"{_OWN} && printf '#!/bin/sh\\n{line}\\n' > cxx && chmod +x cxx && export CXX=$PWD/cxx"

    cannot = "cannot be compiled|could not be compiled|cannot be built"
    yield "no compiler", "extension", cannot, f"{_OWN} && export CXX=false"
    yield "a header is missing", "extension", "fatal error: .*No such file", calls('exec c++ -nostdinc "$@"')
    yield "no memory for the compiler", "host-memory", "memory", calls('ulimit -v 300000\\nexec c++ "$@"')
    full = f"{_OWN} && mount -t tmpfs -o size=64k tmpfs own"
    yield "the disk of extensions is full", "no-space", "disk is full", full


def _deaths() -> Iterator[Death]:
    kill = _on_rank_1("os.kill(os.getpid(), signal.SIGKILL)")
    for launcher in _PLAIN:
        # DeepSpeed's launcher names the code of one rank alone, by chance that of the one which was left.
        code, left = ("exit-code|lost-rank", "|lost the connection") if launcher == "deepspeed" else ("exit-code", "")
        yield Death("kill -9 of a rank", launcher, code, _KILLED + left, kill)
        yield Death("an exception in one rank", launcher, "exception", "KeyError: 'labels'",
                    _on_rank_1("print({}['labels'])"))  # fmt: skip
        yield Death("an abort in one rank (-6)", launcher, code, "SIGABRT" + left, _on_rank_1("os.abort()"))
        yield Death("a segmentation fault in one rank (-11)", launcher, code, "SIGSEGV" + left,
                    _on_rank_1("ctypes.string_at(0)"))  # fmt: skip
    for launcher in ("deepspeed", "torchrun"):  # accelerate then takes another port
        yield Death("its port is taken", launcher, "port-in-use", "is taken", takes_port=True)
        yield Death("a collective that one rank does not reach", launcher, "collective-timeout",
                    "did not reach it|waited", _on_rank_1("time.sleep(600)"), limit=5)  # fmt: skip
        yield Death("other shapes in a collective", launcher, "desync", "different",
                    _on_rank_1("dist.all_reduce(torch.ones(9))"))  # fmt: skip
        yield Death("kill -9 of the launcher", launcher, "exit-code", _KILLED, strikes=signal.SIGKILL)
        yield Death("SIGTERM of the launcher (143)", launcher, "exit-code", "SIGTERM",
                    strikes=signal.SIGTERM)  # fmt: skip
        yield Death("Ctrl-C", launcher, "exit-code", "SIGINT", strikes=signal.SIGINT)
    for launcher in ("deepspeed", "torchrun"):
        yield Death("all ranks wait, each in another collective", launcher, "collective-timeout",
                    "rank 0 at .*all_reduce.*rank 1 at .*all_gather.*different",
                    _on_rank_1("dist.all_gather([torch.ones(4)] * 2, sums)"), limit=5)  # fmt: skip
    yield Death("another collective in one rank", "torchrun", "collective-timeout",
                "rank 0 at .*all_reduce.*rank 1 at .*broadcast.*different",
                _on_rank_1("dist.broadcast(torch.ones(99), 1)"), limit=5)  # fmt: skip
    yield Death("/dev/shm is full: a mapped file (-7)", "torchrun", "exit-code", "SIGBUS.*shm",
                _MAPS, shell=_FULL_SHM)  # fmt: skip
    yield Death("/dev/shm is full: a data loader", "torchrun", "shared-memory", "/dev/shm",
                _LOADS, shell=_FULL_SHM)  # fmt: skip
    yield Death("a control group's memory ran out", "torchrun", "exit-code", _KILLED,
                _on_rank_1("sums = torch.ones(1 << 28)"),
                groups=(("memory/memory.limit_in_bytes", str(768 << 20)),))  # fmt: skip
    yield Death("'ulimit -v' reached", "torchrun", "host-memory", "host memory",
                _on_rank_1("torch.ones(1 << 36)"), shell=f"ulimit -v {64 << 20}")  # fmt: skip
    yield Death("no more threads (pids limit)", "torchrun", "processes", "threads",
                "import threading\nwait = threading.Event()\n"
                "for _ in range(400):\n    threading.Thread(target=wait.wait, daemon=True).start()",
                groups=(("pids/pids.max", "200"),))  # fmt: skip
    yield Death("too many open files", "torchrun", "open-files", "ulimit -n",
                "files = [open('/dev/null') for _ in range(300)]", shell="ulimit -n 256")  # fmt: skip
    full = "mkdir disk && mount -t tmpfs -o size=1m tmpfs disk"
    yield Death("a disk is full", "torchrun", "no-space", "disk is full",
                "torch.save(torch.ones(1 << 20), 'disk/model.pt')", shell=full)  # fmt: skip
    yield Death("a file system is read-only", "torchrun", "read-only", "read-only",
                "open('disk/model.pt', 'w')", shell=full.replace("size=1m", "ro"))  # fmt: skip
    yield Death("a package is missing", "torchrun", "exception",
                "ModuleNotFoundError: No module named 'nope'", "import nope")  # fmt: skip
    yield Death("a file is missing on one rank", "torchrun", "exception",
                "rank 1: FileNotFoundError.*pairs.jsonl", _on_rank_1("open('pairs.jsonl')"))  # fmt: skip
    yield Death("a rank leaves with a code of its own", "torchrun", "exit-code", "exit code 3",
                _on_rank_1("os._exit(3)"))  # fmt: skip
    yield Death("its script is not there", "deepspeed", "no-script", "cannot open the script", script="")
    yield Death("no launcher", "python", "no-launcher", "without a launcher")
    yield Death("'timeout' ended it", "torchrun", "exit-code", "SIGTERM", before=("timeout", "20"))
    # DeepSpeed's own.
    own_extensions = f"{_OWN}/deepspeed_shm_comm"
    yield Death("stuck at a lock that a killed compiler left", "deepspeed", "exit-code", "SIGTERM.*lock",
                script=_ENGINE.replace("CONFIG", "{}"), strikes=signal.SIGTERM, ready=None,
                shell=f"{own_extensions} && touch $TORCH_EXTENSIONS_DIR/deepspeed_shm_comm/lock")  # fmt: skip
    yield Death("no compiler", "deepspeed", "extension", "cannot be compiled|could not be compiled", ranks=1,
                script=_ENGINE.replace("CONFIG", "{}"),
                shell=f"{own_extensions} && export CXX=false")  # fmt: skip
    yield Death("a host that has no address", "deepspeed", "ssh", "nowhere.invalid",
                options=("--hostfile", "hostfile"))  # fmt: skip
    # zerokit train, whose extensions are compiled where nobody has done it before.
    for name, cause, message, shell in _compilers():
        yield Death(name, "zerokit", cause, message, shell=shell)
    yield Death("stuck at a lock that a killed compiler left", "zerokit", "exit-code",
                "SIGTERM.*own/deepspeed_shm_comm/lock: remove",
                shell=f"{_OWN}/deepspeed_shm_comm && touch own/deepspeed_shm_comm/lock",
                ready="waiting for .*lock to go", often=1, strikes=signal.SIGTERM)  # fmt: skip
    # It is DeepSpeed's launcher here, too.
    yield Death("kill -9 of a rank", "zerokit", "exit-code|lost-rank", f"{_KILLED}|lost the connection",
                ready=r"step \d+/", strikes=signal.SIGKILL, struck="rank 1")  # fmt: skip
    yield Death("its port is taken", "zerokit", "zerokit", "another process has port", takes_port=True)
    yield Death("the data are not there", "zerokit", "zerokit", "no such file",
                options=("--data.train", "none.jsonl"))  # fmt: skip


DEATHS = tuple(_deaths())
