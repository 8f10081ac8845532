"""The trials of the drill, as tables: which fault, put to what, when, and what the run must do."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.validation.faults.place import Place, launcher_processes, processes, rank_processes

Arrange = Callable[[Place], None]
Moment = Callable[[Place], bool]


@dataclass(frozen=True)
class Trial:
    """A fault, when it comes, and what the run must do."""

    name: str
    arrange: Arrange
    must: str
    """`refuse`: exit code 2; `end`: another than 0; both with a line. `leave`: 75, with a line, and whole
    checkpoints. `stop`: another than 0, and nothing goes on. `drop`: likewise, with a line, but DeepSpeed may
    make 0 of it: its `launcher/runner.py` passes on no code of a signal. `do`: 0, with all that it was asked
    for. Two of them, with a bar between: either."""
    strike: Arrange | None = None
    """What happens when `moment` has come."""
    moment: Moment | None = None
    resumes: bool = False
    """Whether the place has a checkpoint of a run before."""
    goes_on: bool = False
    """Whether the run can be resumed afterwards."""


# What is done to a file.


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def end_cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def gone(file: Path) -> None:
    file.unlink()


def flipped(file: Path) -> None:
    """64 bytes in its middle are others."""
    content = bytearray(file.read_bytes())
    for at in range(len(content) // 2, min(len(content), len(content) // 2 + 64)):
        content[at] ^= 0xFF
    file.write_bytes(content)


def random(file: Path) -> None:
    file.write_bytes(os.urandom(10_000))


def line_lost(file: Path) -> None:
    file.write_bytes(file.read_bytes().partition(b"\n")[2])


def line_doubled(file: Path) -> None:
    first, end, rest = file.read_bytes().partition(b"\n")
    file.write_bytes(first + end + first + end + rest)


def zeros(file: Path) -> None:
    """Without end."""
    file.unlink()
    file.symlink_to("/dev/zero")


def pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def led_out(file: Path) -> None:
    """A link to the same file or folder in another folder."""
    other = file.parents[1] / f"elsewhere-{file.name}"
    file.rename(other)
    file.symlink_to(other)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def a_list(file: Path) -> None:
    """JSON of another type."""
    file.write_text("[1, 2]")


def payload(file: Path) -> None:
    """A pickle in the torch format that makes the folder `it_ran`."""
    import torch

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, ("it_ran",)

    torch.save({"module": Payload()}, file, pickle_module=pickle)


def content(text: str | bytes) -> Callable[[Path], None]:
    """Put other content in its place."""

    def write(file: Path) -> None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def to(pattern: str, damage: Callable[[Path], None]) -> Arrange:
    """Do that to the first file that has the pattern; to a file of that name if there is none."""

    def arrange(place: Place) -> None:
        damage(next(iter(sorted(place.folder.glob(pattern))), place.path(pattern)))

    return arrange


# How it is started.


def options(*words: str, then: Arrange | None = None, **settings: object) -> Arrange:
    """Start the run with other options; `settings` are attributes of the place."""

    def arrange(place: Place) -> None:
        place.words += words
        for name, value in settings.items():
            setattr(place, name, value)
        if then is not None:
            then(place)

    return arrange


def chat(template: str) -> Arrange:
    """Give the tokenizer a chat template, and data and prompts that ask for one."""

    def arrange(place: Place) -> None:
        place.path("model/chat_template.jinja").write_text(template)
        turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
        place.path("data.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
        place.path("prompts.jsonl").write_text((json.dumps({"messages": turns[:1]}) + "\n") * 4)

    return arrange


def take_port(place: Place) -> None:
    """Listen on the port of the launcher."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", place.port))
    listener.listen()
    _LISTENERS.append(listener)


_LISTENERS: list[socket.socket] = []


# When it comes, and what it is.


def prepares(place: Place) -> bool:
    """Its ranks are there, and have not made a step."""
    if place.ranks == 1:
        return place.folder.with_name("output").exists()  # it has begun to run what it was forked for
    return len(rank_processes()) >= place.ranks


def steps(place: Place) -> bool:
    """A step has been logged."""
    with suppress(OSError):
        return '"loss"' in place.path("out/metrics.jsonl").read_text()
    return False


def saves(place: Place) -> bool:
    """A checkpoint is being written, and one is whole."""
    being_written = place.path("out").glob(".unfinished/checkpoint-*")
    return any(place.path("out").glob("checkpoint-*")) and any(being_written)


def ends(place: Place) -> bool:
    """The trained model is being written."""
    return place.path("out/.saving").exists()


def kill(number: signal.Signals, which: str) -> Arrange:
    """Send a signal to `rank 0`, `rank 1`, the `launcher` (the first process), `zerokit`, or one of the two
    launchers of DeepSpeed below it; or of one process to its `loader worker`."""

    def strike(place: Place) -> None:
        if which in ("launcher", "zerokit"):
            pid = processes()[0]
        elif which == "loader worker":
            pid = processes()[-1]
        elif which.endswith("launcher"):  # the second starts the ranks
            pid = launcher_processes()[-2 if which == "first launcher" else -1]
        else:
            pid = rank_processes()[int(which[-1])]
        os.kill(pid, number)

    return strike


def delete_output(place: Place) -> None:
    shutil.rmtree(place.path("out"), ignore_errors=True)


def linked(name: str, to: str) -> Arrange:
    """Put a link into the output folder."""

    def arrange(place: Place) -> None:
        place.path("out").mkdir(exist_ok=True)
        place.path(f"out/{name}").symlink_to(to)

    return arrange


def mount(where: str, size: str) -> str:
    """The line of a shell that makes a disk of its own there."""
    return f"mkdir -p {where} && mount -t tmpfs -o {size} tmpfs {where}"


RESUME = ("--training.resume_from_checkpoint", "true", "--training.max_steps", "2")
LONG = ("--training.max_steps", "100000", "--training.logging_steps", "1")
EVERY = ("--training.save_strategy", "steps", "--training.save_steps", "1", "--training.save_total_limit", "2")
MORE = ("--training.max_steps", "40", "--training.logging_steps", "1")
_FEW = ("--training.max_steps", "4", "--training.logging_steps", "1")
_LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
_LINE = json.dumps({"prompt": "a", "completion": "b c " * 12_500_000}).encode() + b"\n"
_STAGE = "--deepspeed.zero_optimization.stage"

DAMAGED_MODEL = [
    # file, damage, what training must do, what generation must do
    *((f"model/{name}", damage, "refuse", "refuse") for name in ("config.json", "tokenizer.json")
      for damage in (cut, empty, flipped, random, zeros, a_list, pipe, led_out)),
    *(("model/tokenizer_config.json", damage, "refuse", "refuse")
      for damage in (cut, flipped, zeros, a_list)),
    *(("model/model.safetensors", damage, "refuse", "refuse")
      for damage in (cut, end_cut, empty, gone, random, zeros, folder, pipe, led_out)),
    *(("model/generation_config.json", damage, "refuse", "refuse") for damage in (cut, zeros, pipe)),
    ("model/generation_config.json", gone, "do", "do"),
    ("model/config.json", gone, "refuse", "refuse"),
    ("model/tokenizer.json", folder, "refuse", "refuse"),
    ("model/chat_template.jinja", zeros, "refuse", "refuse"),
]  # fmt: skip
"""Which file of the model, how."""

_STATES, _OPTIMIZER = "mp_rank_00_model_states.pt", "*optim_states.pt"
DAMAGED_CHECKPOINT = [
    *((f"global_step*/{name}", damage) for name in (_STATES, _OPTIMIZER)
      for damage in (cut, end_cut, empty, gone, flipped, payload)),
    *(("trainer_state.json", damage) for damage in (cut, empty, flipped, a_list)),
    *((name, damage) for name in ("rng_state.pth", "scheduler.pt")
      for damage in (cut, payload, pipe, led_out)),
    *(("zerokit_run.json", damage) for damage in (cut, a_list)),
    ("latest", gone),
    ("latest", content("../../model")),
]  # fmt: skip
"""Which file of a checkpoint, how; a run must refuse to go on from it."""
DAMAGED_CHECKSUMS = (random, cut, empty, gone, line_lost, line_doubled)
"""How; a run must refuse to go on, and go on with --no-verify."""
UNVERIFIED = [(name, damage) for name, damage in DAMAGED_CHECKPOINT if damage in (cut, gone, payload, pipe, led_out)]
"""Of these, what it must refuse with --no-verify, too."""

LINKS_REFUSED = {
    **dict.fromkeys((".unfinished", ".saving", ".replaced", ".divided", "tokenizer.json"), "../model"),
    "run.lock": "../data.jsonl",
}
LINKS_REPLACED = {
    **dict.fromkeys((".model", ".config.json.link"), "../model"),
    **dict.fromkeys(("metrics.jsonl", "model.safetensors", "config.json"), "../data.jsonl"),
}
"""Names that a run uses in its output folder, and to which of the user's files a link there leads."""

HOSTILE = {
    "recipe of zeros without end": to("recipe.yaml", zeros),
    "recipe of random bytes": to("recipe.yaml", random),
    "recipe that is a folder": to("recipe.yaml", folder),
    "recipe of anchors": to("recipe.yaml", content("a: &a [x,x]\n" + "".join(
        f"{chr(c)}: &{chr(c)} [*{chr(c - 1)},*{chr(c - 1)}]\n" for c in range(98, 112)))),
    "recipe that runs code": to("recipe.yaml", content("model: !!python/object/apply:os.mkdir ['it_ran']\n")),
    "data cut": to("data.jsonl", content('{"prompt": "a", "completion": "b"}\n{"prompt": "a", "comp')),
    "data gone": to("data.jsonl", gone),
    "data empty": to("data.jsonl", empty),
    "data a folder": to("data.jsonl", folder),
    "data of random bytes": to("data.jsonl", random),
    "data with a null": to("data.jsonl", content('{"prompt": "a", "completion": null}\n' * 8)),
    "data not UTF-8": to("data.jsonl", content(b'{"prompt": "\xff\xfe", "completion": "b"}\n' * 8)),
    "data of deep lists": to("data.jsonl", content('{"prompt": ' + "[" * 5000 + "]" * 5000 + "}\n")),
    "data with other columns": to("data.jsonl", content('{"\x1b[2Jred": "a"}\n' * 8)),
    "a model's name of 300 characters": options("--model", "x" * 300),
    "a model's name with escape sequences": options("--model", "\x1b[2Jowned/x"),
    "a ds_config of zeros without end": options("--deepspeed", "/dev/zero"),
    "no ds_config": options("--deepspeed", "none.json"),
    **{f"output folder with a link {name}": linked(name, to) for name, to in LINKS_REFUSED.items()},
    "output folder is a file": lambda place: place.path("out").touch(),
    "output folder cannot be written": options(shell=mount("out", "ro")),
    "no batch": options("--training.per_device_train_batch_size", "0"),
}  # fmt: skip
"""What a run must refuse."""

TEMPLATES = {
    "that loops": _LOOP,
    "of 10 GB": "{{ 'a' * 10**10 }}",
    "with escape sequences": "{{ raise_exception('\x1b[2Jowned') }}",
    "that leaves its sandbox": "{{ ().__class__.__mro__[1].__subclasses__() }}",
    "that calls itself": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "with a mistake": "{% for message in messages %}{{ message.content }",
    "that reads a file": "{% include '/etc/passwd' %}",
}
"""Chat templates that a run must refuse."""

SIGNALS = [
    *(("launcher", number, moment)
      for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
      for moment in (prepares, steps, saves, ends)),
    *(("launcher", number, steps) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGQUIT)),
]  # fmt: skip
"""What one process gets, when."""

_ASKS = (signal.SIGTERM, signal.SIGINT)
"""What has a run that trains save and leave."""

SIGNALS_TO_RANKS = [
    # who, what, when, ZeRO stage
    ("rank 1", signal.SIGSTOP, steps, 2),
    ("rank 1", signal.SIGKILL, saves, 3),
    ("rank 0", signal.SIGKILL, steps, 2),
    ("launcher", signal.SIGKILL, steps, 2),
    ("launcher", signal.SIGTERM, steps, 1),
    ("rank 1", signal.SIGTERM, steps, 3),
    ("launcher", signal.SIGINT, steps, 3),
    ("rank 1", signal.SIGSEGV, steps, 2),
    ("rank 1", signal.SIGKILL, prepares, 1),
    ("rank 0", signal.SIGKILL, saves, 1),
    ("launcher", signal.SIGKILL, prepares, 2),
    ("rank 0", signal.SIGSTOP, prepares, 2),
]
"""What one of two ranks, or their launcher, gets."""


def _name(file: str) -> str:
    return file.removeprefix("model/").replace("global_step*/", "").replace("*", "")


def _word(action: object) -> str:
    return getattr(action, "__name__", "content").replace("_", " ")


def _of_files() -> Iterator[Trial]:
    for file, damage, train, generate in DAMAGED_MODEL:
        what = f"{_name(file)} {_word(damage)}"
        yield Trial(f"train, {what}", to(file, damage), train)
        # What a template is for, these prompts do not ask.
        if damage in (cut, gone, zeros, pipe, end_cut):
            yield Trial(f"generate, {what}", options(command="generate", then=to(file, damage)), generate)
    for file, damage in DAMAGED_CHECKPOINT:
        arrange = options(*RESUME, then=to(f"out/checkpoint-*/{file}", damage))
        yield Trial(f"resume, {_name(file)} {_word(damage)}", arrange, "refuse", resumes=True)
    for damage in DAMAGED_CHECKSUMS:
        for words, must in (((), "refuse"), (("--no-verify",), "do")):
            arrange = options(*RESUME, *words, then=to("out/checkpoint-*/SHA256SUMS", damage))
            name = f"{' '.join(('resume', *words))}, SHA256SUMS {_word(damage)}"
            yield Trial(name, arrange, must, resumes=True)
    base = options(*RESUME, then=to("model/model.safetensors", flipped))
    yield Trial("resume, the model to start from flipped", base, "refuse", resumes=True)
    for file, damage in UNVERIFIED:
        arrange = options(*RESUME, "--no-verify", then=to(f"out/checkpoint-*/{file}", damage))
        yield Trial(f"resume --no-verify, {_name(file)} {_word(damage)}", arrange, "refuse", resumes=True)
    yield Trial("resume, whole", options(*RESUME), "do", resumes=True)
    linked_checkpoint = options(*RESUME, then=to("out/checkpoint-*", led_out))
    yield Trial("resume, the checkpoint is a link", linked_checkpoint, "do", resumes=True)
    yield Trial("generate, whole", options(command="generate"), "do")


def _of_input() -> Iterator[Trial]:
    for name, arrange in HOSTILE.items():
        yield Trial(name, arrange, "refuse")
    for name, target in LINKS_REPLACED.items():
        yield Trial(f"output folder with a link {name}", linked(name, target), "do")
    yield Trial("a data line of 50 MB", to("data.jsonl", content(_LINE * 2)), "do")
    for name, template in TEMPLATES.items():
        for command in ("train", "generate"):
            yield Trial(f"{command}, a chat template {name}", options(command=command, then=chat(template)), "refuse")


def _of_machine() -> Iterator[Trial]:
    for size, must in (("64k", "refuse"), ("64m", "refuse"), ("131m", "refuse"), ("140m", "do")):
        shell = f"mount -t tmpfs -o size={size} tmpfs /dev/shm"
        yield Trial(f"/dev/shm of {size}", options(ranks=2, shell=shell), must)
    yield Trial("port taken, train", options(ranks=2, then=take_port), "end")
    yield Trial("port taken, generate", options(command="generate", ranks=2, then=take_port), "end")
    for stage in ("1", "2", "3"):
        full = options(*_FEW, *EVERY, _STAGE, stage, shell=mount("out", "size=3500k"))
        yield Trial(f"disk full at a checkpoint, stage {stage}", full, "do|end")
    yield Trial("disk full at a checkpoint of two ranks", options(
        *_FEW, *EVERY, ranks=2, shell=mount("out", "size=3500k")), "do|end")  # fmt: skip
    for number in (12, 20):
        full = options(*_FEW, *EVERY, shell=mount("out", f"nr_inodes={number}"))
        yield Trial(f"{number} names left on the disk", full, "do|end")
    once = ("--training.save_strategy", "'no'")
    for size in ("4k", "100k", "400k"):
        full = options(*once, shell=mount("out", f"size={size}"))
        yield Trial(f"disk of {size} full at the end", full, "refuse|end")
    yield Trial("disk of the cache full", options(shell=mount("cache", "size=4k")), "refuse|do")
    yield Trial("results to a full device", options("-o", "/dev/full", command="generate"), "refuse|end")
    full = options("-o", "out/a.jsonl", command="generate", shell=mount("out", "size=4k"))
    yield Trial("results on a full disk", full, "refuse|end")
    yield Trial("output folder deleted", options(*MORE, *EVERY), "do|end", delete_output, steps)


def _of_processes() -> Iterator[Trial]:
    for _, number, moment in SIGNALS:
        length = _FEW if moment is ends else LONG
        yield Trial(
            f"one process, {number.name} as it {_word(moment)}", options(*length, *EVERY),
            "leave" if number in _ASKS and moment in (steps, saves) else "stop",
            kill(number, "launcher"), moment, goes_on=moment is not prepares,
        )  # fmt: skip
    for which, number, moment, stage in SIGNALS_TO_RANKS:
        must = "stop" if which == "launcher" or number is signal.SIGTERM or moment is prepares else "end"
        must = "end" if number is signal.SIGSTOP else must
        must = "leave" if number in _ASKS and which != "launcher" and moment is steps else must
        patience = () if moment is steps else ("--stuck-after", "20")
        arrange = options(*LONG, *EVERY, _STAGE, str(stage), *patience, ranks=2)
        name = f"{which} of two, {number.name} as it {_word(moment)}, stage {stage}"
        yield Trial(name, arrange, must, kill(number, which), moment, goes_on=moment is saves or must == "leave")


def trials() -> list[Trial]:
    """All of them, the quick ones first."""
    return [*_of_files(), *_of_input(), *_of_machine(), *_of_processes()]
