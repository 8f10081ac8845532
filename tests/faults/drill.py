"""Faults, each put to one real run: ``python -m tests.faults.drill [--fast] [--only WORD] [--write]``.

Whatever happens, a run must end: with a model that is whole, or with a line that says what was wrong. It must
not do something else in silence, print a traceback with no line above it, go on for more than 120 s after the
fault, leave a process or shared memory behind, or change a file of its user. ``--fast`` tries those that one
process meets before its first step. With ``--write`` the table goes into docs/measured/fault_drill.json.

It needs Linux, and root for disks of its own (``unshare --mount``).
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tiny import ONE_STEP_RECIPE, REPOSITORY, free_port, tiny_llama, tiny_tokenizer

WRITTEN = REPOSITORY / "docs" / "measured" / "fault_drill.json"
MOST_SECONDS = 120.0
"""From the fault to the end."""
_START_SECONDS = 400.0
"""Until the first step, with an extension to compile on a busy machine."""
_USERS = ("model", "data.jsonl", "recipe.yaml")
_SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Place:
    """The folder of one trial, with a model, data and a recipe, and how to start the run there."""

    folder: Path
    words: list[str] = field(default_factory=list)
    """Options of the run."""
    ranks: int = 1
    shell: str = ""
    """What a shell does before, in a namespace with mounts of its own."""
    port: int = field(default_factory=free_port)
    mark: str = field(default_factory=lambda: f"ZEROKIT_DRILL={os.urandom(8).hex()}")
    """A variable by which its processes are known."""

    def path(self, name: str) -> Path:
        return self.folder / name

    def command(self) -> list[str]:
        script = [str(REPOSITORY / "launch" / "train.py"), "--recipe", "recipe.yaml", *self.words]
        launcher = [sys.executable, "-m", "deepspeed.launcher.runner"]
        launcher += ["--num_gpus", str(self.ranks), "--master_port", str(self.port)]
        words = [sys.executable, *script] if self.ranks == 1 else [*launcher, *script]
        if self.shell:
            return ["unshare", "--mount", "sh", "-c", f'{self.shell} && exec "$@"', "sh", *words]
        return words

    def start(self, output: Path) -> subprocess.Popen[bytes]:
        name, _, value = self.mark.partition("=")
        environment = {
            **os.environ,
            **{"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            **{"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(self.path("cache")), name: value},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        with output.open("wb") as stream:
            return subprocess.Popen(
                self.command(), cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
                stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[int]:
        """All processes that come of the run, wherever they went, in order of birth."""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if self.mark.encode() in file.read_bytes() and not _is_dead(file.parent):
                    found.append(int(file.parent.name))
        return sorted(found)

    def ranks_of(self) -> list[int]:
        """Those that are ranks, not launchers."""
        found = []
        for pid in self.processes():
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if b"launch/train.py" in words and b"deepspeed.launcher" not in words:
                    found.append(pid)
        return found


def _is_dead(process: Path) -> bool:
    return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"


Arrange = Callable[[Place], None]


@dataclass(frozen=True)
class Trial:
    """A fault, when it comes, and what the run must do."""

    name: str
    arrange: Arrange
    must: str
    """`refuse`: exit code 2; `end`: another than 0; both with a line. `stop`: another than 0, and nothing
    goes on. `train`: 0, and a whole model."""
    strike: Arrange | None = None
    """What happens after its first step."""
    resumes: bool = False
    """Whether the place has a checkpoint of a run before."""
    fast: bool = False


def prepare(folder: Path) -> None:
    """Write what a user has: a model, data and a recipe of one step."""
    tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model")
    lines = [json.dumps({"prompt": f"What is {n}?", "completion": f"A number, {n}."}) for n in range(64)]
    (folder / "data.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "recipe.yaml").write_text(ONE_STEP_RECIPE + "  report_to: []\n  disable_tqdm: true\n")


def digests(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change of the user's files."""
    files = [file for name in _USERS for file in (folder / name, *folder.joinpath(name).rglob("*"))]
    status = {str(file): file.lstat() for file in files if os.path.lexists(file)}
    return {name: (found.st_size, found.st_mtime_ns) for name, found in status.items()}


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Look every tenth of a second."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def has_stepped(place: Place) -> bool:
    """Whether a step has been logged."""
    with suppress(OSError):
        return '"loss"' in place.path("out/metrics.jsonl").read_text()
    return False


def try_one(trial: Trial, base: Path, parent: Path) -> dict[str, Any]:
    """The row of a trial: its outcome, its seconds since the fault, and what is wrong with them."""
    place = Place(parent / "place")
    shutil.copytree(base, place.folder, symlinks=True)
    output = parent / "output"
    trial.arrange(place)
    before = digests(place.folder)
    process = place.start(output)
    begun = time.monotonic()
    wrongs = []
    if trial.strike is not None:
        if not wait_until(lambda: has_stepped(place) or process.poll() is not None, _START_SECONDS):
            wrongs.append("no first step")
        begun = time.monotonic()
        trial.strike(place)
    limit = MOST_SECONDS if trial.strike is not None else _START_SECONDS
    if not wait_until(lambda: process.poll() is not None, limit):
        wrongs.append(f"still running after {limit:.0f} s")
    seconds = time.monotonic() - begun
    if not wait_until(lambda: not place.processes() or process.poll() is None, 15.0):
        wrongs.append(f"{len(place.processes())} processes left")
    for pid in place.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code = process.wait()
    left = [*_SHARED_MEMORY.glob(f"deepspeed_allreduce_buffer_*_{place.port}_*")]
    for file in left:
        file.unlink(missing_ok=True)
    text = output.read_text(errors="replace")
    wrongs += ["shared memory left"] * bool(left)
    wrongs += ["a user's file changed"] * (digests(place.folder) != before)
    wrongs += judge(trial, place, code, text)
    line = next((line for line in text.splitlines() if "zerokit: " in line), "")
    shutil.rmtree(place.folder)
    return {
        "trial": trial.name,
        "must": trial.must,
        "exit_code": code,
        "seconds": round(seconds, 1),
        "line": line.replace(str(parent), "..."),
        "wrong": wrongs,
    }


def judge(trial: Trial, place: Place, code: int, text: str) -> list[str]:
    """What the run did that it must not do."""
    wrongs = []
    error = text.find("zerokit: ")
    trace = text.find("Traceback (most recent call last)")
    if trace >= 0 and not 0 <= error < trace:
        wrongs.append("a traceback without a line above it")
    if trial.must == "train":
        whole = all(place.path(f"out/{name}").is_file() for name in ("model.safetensors", "run.json"))
        wrongs += [f"exit code {code}, {'a' if whole else 'no'} model"] * (code != 0 or not whole)
    elif code == 0:
        wrongs.append("exit code 0, as if nothing had been")
    elif trial.must != "stop":
        wrongs += ["no line that says why"] * (error < 0)
        wrongs += [f"exit code {code}, not 2"] * (trial.must == "refuse" and code != 2)
    if place.path("out/model.safetensors").exists() and not place.path("out/config.json").exists():
        wrongs.append("half a model")
    wrongs += ["code of a checkpoint ran"] * place.path("it_ran").exists()
    return wrongs


def cut(name: str, part: float = 0.5) -> Arrange:
    """Keep only a part of a file."""

    def arrange(place: Place) -> None:
        (file,) = place.folder.glob(name)
        os.truncate(file, int(file.stat().st_size * part))

    return arrange


def flip(name: str) -> Arrange:
    """Turn 64 bytes in the middle of a file round."""

    def arrange(place: Place) -> None:
        (file,) = place.folder.glob(name)
        content = bytearray(file.read_bytes())
        for at in range(len(content) // 2, len(content) // 2 + 64):
            content[at] ^= 0xFF
        file.write_bytes(content)

    return arrange


def replaced(name: str, content: bytes | None, link: str | None = None) -> Arrange:
    """Put something else in a file's place, or nothing."""

    def arrange(place: Place) -> None:
        for file in place.folder.glob(name) if "*" in name else [place.path(name)]:
            file.unlink(missing_ok=True)
            if link is not None:
                file.symlink_to(link)
            elif content is not None:
                file.write_bytes(content)

    return arrange


def options(*words: str, then: Arrange | None = None, **settings: object) -> Arrange:
    """Start the run with other options; `settings` are attributes of the place."""

    def arrange(place: Place) -> None:
        place.words += words
        for name, value in settings.items():
            setattr(place, name, value)
        if then is not None:
            then(place)

    return arrange


def payload(place: Place) -> None:
    """Have a checkpoint run code, in the torch format."""
    import torch

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(place.path("it_ran")),)

    (file,) = place.folder.glob(_STATES)
    torch.save({"module": Payload()}, file, pickle_module=pickle)


def chat(template: str) -> Arrange:
    """Give the tokenizer a chat template, and data that asks for one."""

    def arrange(place: Place) -> None:
        place.path("model/chat_template.jinja").write_text(template)
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
        place.path("data.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)

    return arrange


def take_port(place: Place) -> None:
    """Listen on the port of the launcher."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", place.port))
    listener.listen()
    _LISTENERS.append(listener)


_LISTENERS: list[socket.socket] = []


def kill(number: signal.Signals, which: str) -> Arrange:
    """Send a signal to `rank 0`, `rank 1`, or the `launcher` (the first process)."""

    def strike(place: Place) -> None:
        pids = place.processes() if which == "launcher" else place.ranks_of()
        os.kill(pids[int(which[-1]) if which != "launcher" else 0], number)

    return strike


def delete_output(place: Place) -> None:
    shutil.rmtree(place.path("out"))


_STATES = "out/checkpoint-*/global_step*/mp_rank_00_model_states.pt"
_RESUME = ("--training.resume_from_checkpoint", "true", "--training.max_steps", "2")
_LONG = ("--training.max_steps", "100000", "--training.logging_steps", "1")
_LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
_LINE = json.dumps({"prompt": "a", "completion": "b c " * 12_500_000}).encode() + b"\n"


def trials() -> list[Trial]:
    """All of them."""
    damaged = {
        "weights cut": cut("model/model.safetensors"),
        "weights without their end": cut("model/model.safetensors", 0.999),
        "weights empty": replaced("model/model.safetensors", b""),
        "weights gone": replaced("model/model.safetensors", None),
        "config.json cut": cut("model/config.json"),
        "config.json of zeros without end": replaced("model/config.json", None, "/dev/zero"),
        "tokenizer.json cut": cut("model/tokenizer.json"),
        "tokenizer_config.json of zeros without end": replaced(
            "model/tokenizer_config.json", None, "/dev/zero"
        ),
        "generation_config.json is a pipe": lambda place: (
            replaced("model/generation_config.json", None)(place),
            os.mkfifo(place.path("model/generation_config.json")),
        )[0],
        "recipe of zeros without end": replaced("recipe.yaml", None, "/dev/zero"),
        "recipe of random bytes": replaced("recipe.yaml", os.urandom(10_000)),
        "data cut": replaced("data.jsonl", b'{"prompt": "a", "completion": "b"}\n{"prompt": "a", "comp'),
        "data gone": replaced("data.jsonl", None),
        "data with a null": replaced("data.jsonl", b'{"prompt": "a", "completion": null}\n' * 8),
        "data not UTF-8": replaced("data.jsonl", b'{"prompt": "\xff\xfe", "completion": "b"}\n' * 8),
        "a chat template that loops": chat(_LOOP),
        "a chat template of 10 GB": chat("{{ 'a' * 10**10 }}"),
        "a chat template with escape sequences": chat("{{ raise_exception('\x1b[2Jowned') }}"),
        "output folder is a file": lambda place: place.path("out").touch(),
        "output folder cannot be written": options(shell="mkdir out && mount -t tmpfs -o ro tmpfs out"),
    }
    saved = {
        "64 bytes flipped": flip("out/checkpoint-*/global_step*/*optim_states.pt"),
        "64 bytes flipped, --no-verify": options("--no-verify", then=flip(_STATES)),
        "a file cut, --no-verify": options("--no-verify", then=cut(_STATES)),
        "a file gone": replaced(_STATES, None),
        "code in it": payload,
        "code in it, --no-verify": options("--no-verify", then=payload),
    }
    two = options(*_LONG, ranks=2)
    return [
        *(Trial(name, arrange, "refuse", fast=True) for name, arrange in damaged.items()),
        Trial("a data line of 50 MB", replaced("data.jsonl", _LINE * 2), "train", fast=True),
        *(
            Trial(f"checkpoint: {name}", options(*_RESUME, then=arrange), "refuse", resumes=True, fast=True)
            for name, arrange in saved.items()
            if name != "64 bytes flipped, --no-verify"
        ),
        Trial("checkpoint: whole", options(*_RESUME), "train", resumes=True, fast=True),
        Trial("/dev/shm of 64 KB", options(ranks=2, shell=_small_shm("64k")), "refuse"),
        Trial("/dev/shm of 64 MB", options(ranks=2, shell=_small_shm("64m")), "refuse"),
        Trial("port taken", options(ranks=2, then=take_port), "end"),
        Trial("disk full at the end", options(shell=_small_disk("100k")), "end"),
        Trial("output folder deleted", options(*_LONG, *_EVERY), "end", delete_output),
        Trial("rank 1 killed", two, "end", kill(signal.SIGKILL, "rank 1")),
        Trial("rank 0 killed", two, "end", kill(signal.SIGKILL, "rank 0")),
        Trial("rank 1 ended", two, "end", kill(signal.SIGTERM, "rank 1")),
        Trial("launcher interrupted", two, "stop", kill(signal.SIGINT, "launcher")),
        Trial("launcher ended", two, "stop", kill(signal.SIGTERM, "launcher")),
        Trial("launcher killed", two, "stop", kill(signal.SIGKILL, "launcher")),
        Trial("one process interrupted", options(*_LONG), "stop", kill(signal.SIGINT, "launcher")),
        Trial("one process ended", options(*_LONG), "stop", kill(signal.SIGTERM, "launcher")),
        Trial("rank 1 stopped", two, "end", kill(signal.SIGSTOP, "rank 1")),
    ]


_EVERY = ("--training.save_strategy", "steps", "--training.save_steps", "50")


def _small_shm(size: str) -> str:
    return f"mount -t tmpfs -o size={size} tmpfs /dev/shm"


def _small_disk(size: str) -> str:
    return f"mkdir out && mount -t tmpfs -o size={size} tmpfs out"


def shown(row: dict[str, Any]) -> str:
    """A row of the table, for people."""
    verdict = "; ".join(row["wrong"]) or "as it must be"
    return f"{row['seconds']:6} s  {row['exit_code']:4}  {row['trial']:45} {verdict}\n{'':16}{row['line']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--fast", action="store_true", help="only what one process meets before its first step"
    )
    parser.add_argument("--only", default="", metavar="WORD", help="only trials with it in their name")
    parser.add_argument("--write", action="store_true", help="rewrite the file in docs/measured/")
    given = parser.parse_args()
    chosen = [trial for trial in trials() if given.only in trial.name and (trial.fast or not given.fast)]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        parent = Path(name)
        base, saved = parent / "base", parent / "saved"
        prepare(base)
        if any(trial.resumes for trial in chosen):
            shutil.copytree(base, saved)
            first = Place(saved, ["--training.save_strategy", "steps", "--training.save_steps", "1"])
            assert first.start(parent / "first").wait() == 0, (parent / "first").read_text()
        for trial in chosen:
            row = try_one(trial, saved if trial.resumes else base, parent)
            rows.append(row)
            print(shown(row), flush=True)
    wrong = [row for row in rows if row["wrong"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} as they must be")
    if given.write:
        WRITTEN.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
