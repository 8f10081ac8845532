"""Bad inputs, made from seeds: files that are damaged, hostile or of something else, and odd options.

A case is the words of one command and the files that lie beside it. The same seed makes the same case.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.tiny import REPOSITORY

Write = bytes | Callable[[Path], None]
"""The content of a file, or what makes it."""


@dataclass(frozen=True)
class Case:
    """One input."""

    name: str
    words: tuple[str, ...]
    """After ``zerokit``."""
    files: dict[str, Write] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()
    """Files that it is asked to write."""
    writes: bool = False
    """Whether it is asked to write a file of any name."""


CONFIG = json.loads((REPOSITORY / "ds_configs" / "plain" / "zero3_nvme.json").read_text())
RECIPE = {
    "model": "./none",
    "data": {"train": "none.jsonl"},
    "task": {"seq_len": 64},
    "training": {"output_dir": "out", "max_steps": 1, "learning_rate": 1e-5},
    "deepspeed": {"zero_optimization": {"stage": 2}},
}
MODEL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
ODD: list[Any] = [
    *(None, True, False, -1, 0, 10**30, -(10**400), 1e-320, 1.5, float("nan"), float("inf")),
    *(
        "",
        "auto",
        "cpu",
        "1e9999",
        "\x1b[2J\x1b]0;owned\x07",
        "\u202egnp.exe",
        "\ud800",
        "💥" * 400,
        "../../../etc/passwd",
    ),
    *(
        [],
        {},
        [[]],
        [1, "a", None],
        {"": {"": {}}},
        {"stage": {"stage": 3}},
        "x" * 300_000,
        "%s%n{0}{{x}}${HOME}",
    ),
]
WORDS = [
    *("", " ", "-1", "0", "1e400", "nan", "99999999999999999999", "0x10", "١٢", "80GiB", "-80GiB", "1,2,,3"),
    *(
        "a,b",
        "💥",
        "\x1b[31m",
        "\u202e",
        "none.json",
        ".",
        "/",
        "/dev/null",
        "/dev/zero",
        "x" * 5000,
        "--",
        "-",
    ),
    *("a/b/c/d", "~nobody", "%s", "$(id)", "trainer", "json", "NaN", "True", "None", "[]", "{}", "key=value"),
    *("=", "a=", "=b", "zero_optimization.stage", "..", "\udcff"),
]


def damaged(text: str, random_: random.Random) -> bytes:
    """A text that was cut, mixed up or saved as something else."""
    content = bytearray(text.encode())
    at = random_.randrange(len(content))
    kind = random_.randrange(12)
    if kind == 0:
        return bytes(content[:at])
    if kind == 1:
        for _ in range(random_.randint(1, 20)):
            content[random_.randrange(len(content))] = random_.randrange(256)
        return bytes(content)
    if kind == 2:
        odd = random_.choice(
            [
                "}",
                "]",
                "{",
                ",",
                ":",
                '"',
                "\\",
                "#",
                "//",
                "\t",
                "\0",
                "\x1b[31m",
                "NaN",
                "\u2028",
                "&a ",
                "*a ",
            ]
        )
        return bytes(content[:at]) + odd.encode() + bytes(content[at:])
    if kind == 3:
        return text.encode(random_.choice(["utf-16", "utf-32", "utf-8-sig", "cp037"]))
    if kind == 4:
        return bytes(content[at:] + content[:at])
    if kind == 5:
        lines = text.splitlines()
        return "\n".join(
            [*lines[: at % len(lines)], "<<<<<<< HEAD", *lines, "=======", *lines, ">>>>>>> x"]
        ).encode()
    if kind == 6:
        return bytes(content) * random_.randint(2, 400)
    if kind == 7:
        return random_.choice(
            [b"", b"\n", b"null", b"[]", b'""', b"0", b"\xef\xbb\xbf", b"{}", b"---\n---\n", b"[{}]"]
        )
    if kind == 8:
        return random_.choice(
            [
                b"<!DOCTYPE html><html></html>",
                b"version https://git-lfs.github.com/spec/v1\n",
                b"\x7fELF" * 99,
                b"PK\x03\x04",
                b"%PDF",
            ]
        )
    if kind == 9:
        deep = random_.choice([150, 250, 5_000, 200_000])
        return b'{"a":' * deep + b"1" + b"}" * random_.choice([deep, 0])
    if kind == 10:
        return random_.randbytes(random_.choice([1, 100, 100_000]))
    return (
        text.replace('"', random_.choice(["'", "“", ""]))
        .replace(":", random_.choice([":", "=", " "]))
        .encode()
    )


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each entry of nested data."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def distorted(data: Any, random_: random.Random) -> Any:
    """Data of which some entries have other values or names, or are doubled, gone or many."""
    data = json.loads(json.dumps(data))
    for _ in range(random_.randint(1, 4)):
        path = random_.choice([*places(data)] or [()])
        if not path:
            return random_.choice(ODD)
        section = data
        for key in path[:-1]:
            section = section[key]
        kind = random_.randrange(6)
        if kind == 0 and isinstance(section, dict):
            section[str(random_.choice(ODD))[:400]] = section.pop(path[-1])
        elif kind == 1:
            del section[path[-1]]
        elif kind == 2 and isinstance(section, dict):
            section.update({f"key_{number}": number for number in range(random_.choice([10, 2000]))})
        else:
            section[path[-1]] = random_.choice(ODD)
    return data


def bad_json(data: Any, random_: random.Random) -> Write:
    """A file of JSON that is damaged, distorted, or no file."""
    if random_.random() < 0.12:
        return special(random_)
    if random_.random() < 0.45:
        return damaged(json.dumps(data, indent=2), random_)
    return json.dumps(distorted(data, random_)).encode(errors="surrogatepass")


def bad_yaml(data: Any, random_: random.Random) -> Write:
    """As :func:`bad_json`, with what only YAML has."""
    chance = random_.random()
    if chance < 0.1:
        return special(random_)
    if chance < 0.4:
        return damaged(yaml.safe_dump(data), random_)
    if chance < 0.6:
        return random_.choice(YAML)
    return yaml.safe_dump(distorted(data, random_), allow_unicode=True).encode(errors="surrogatepass")


YAML = [
    b"a: &a [x,x]\n"
    + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c]\n" % (c, c, *[c - 1] * 4) for c in range(98, 112)),
    b"model: !!python/object/apply:os.system ['touch owned']\n",
    b"a: &a\n  b: *a\n",
    b"? {a: b}\n: c\n",
    b"model: *nowhere\n",
    b"<<: {<<: {a: 1}}\nmodel: 2024-99-99\n",
    b"model: 0o17\ndata: 1_000\ntask: 12:30:45\ntraining: !!binary x\n",
    b"".join(b"k%d: &x%d {a: 1}\n" % (number, number) for number in range(20_000)),
    b"\ttraining: 1\n",
    b"%YAML 9.9\n---\na: 1\n",
]


def special(random_: random.Random) -> Write:
    """What is not an ordinary file, or is far too large."""

    def sparse(file: Path) -> None:
        with file.open("wb") as opened:
            opened.truncate(200 << 20)

    def large(file: Path) -> None:
        file.write_text(json.dumps({f"key_{number}": number for number in range(150_000)}))

    return random_.choice(
        [
            lambda file: file.symlink_to("/dev/zero"),
            lambda file: file.symlink_to("/dev/null"),
            lambda file: file.symlink_to("/dev/urandom"),
            lambda file: file.symlink_to(file.name),
            lambda file: file.symlink_to("/proc/self/mem"),
            lambda file: file.mkdir(),
            sparse,
            large,
            lambda file: None,
        ]
    )


NAMES = [
    "a.json",
    "\x1b[31mred.json",
    "-x.json",
    "ä\u202e.json",
    "a b.json",
    "a.yaml",
    "a",
    "a.JSON",
    "x" * 250 + ".json",
]


def of_check(random_: random.Random) -> Case:
    name = random_.choice(NAMES)
    content = bad_yaml(CONFIG, random_) if name.endswith("yaml") else bad_json(CONFIG, random_)
    options = random_.sample(
        ["--num-gpus=4", "--target=deepspeed", "--target=accelerate", "--model=llama-3.1-8b", "--gpu=h100"], 2
    )
    form = random_.choice(["text", "json", "github", "sarif"])
    fix = random_.random() < 0.3
    words = ("check", f"--format={form}", *options, *(("--fix",) if fix else ()), f"./{name}")
    return Case("check", words, {name: content}, frozenset([name] if fix else []))


def of_resolve(random_: random.Random) -> Case:
    words = ("resolve", "a.json", "--num-gpus=4", f"--format={random_.choice(['text', 'json'])}", "--all")
    if random_.random() < 0.5:
        return Case("resolve", words, {"a.json": bad_json(CONFIG, random_)})
    content = bad_yaml({**RECIPE, "model": "llama-3.1-8b"}, random_)
    return Case("resolve", ("resolve", "--num-gpus=4", "--recipe=r.yaml"), {"r.yaml": content})


def of_diff(random_: random.Random) -> Case:
    files: dict[str, Write] = {"a.json": bad_json(CONFIG, random_), "b.json": json.dumps(CONFIG).encode()}
    words = random_.sample(["a.json", "b.json"], 2)
    return Case("diff", ("diff", *words, "--num-gpus=4"), files)


def of_estimate(random_: random.Random) -> Case:
    sizes = ("--num-gpus=8", "--micro-batch-size=1", "--seq-len=512")
    if random_.random() < 0.4:
        return Case(
            "estimate --ds-config",
            ("estimate", "llama-3.1-8b", *sizes, "--ds-config=a.json"),
            {"a.json": bad_json(CONFIG, random_)},
        )
    content = bad_json(MODEL, random_)
    model = random_.choice(["config.json", "."])
    return Case("estimate MODEL", ("estimate", model, *sizes, "--zero-stage=3"), {"config.json": content})


def of_train(random_: random.Random) -> Case:
    # Broken in a way that shows before torch is imported: whether the rest would train is not tried here.
    content = damaged("model: [\n" + yaml.safe_dump(RECIPE), random_)
    if random_.random() < 0.5:
        content = yaml.safe_dump({**distorted({"a": RECIPE}, random_), "model_": 1}).encode(
            errors="surrogatepass"
        )
    return Case("train", ("train", "--recipe=r.yaml"), {"r.yaml": content})


_OPTIONS = {
    "config": "zero-stage offload-optimizer precision optimizer learning-rate micro-batch-size model num-gpus"
    " gpu gpu-memory hpz-size preset warmup-steps format nvme-path",
    "check good.json": "num-gpus gpus-per-node model recipe gpu gpu-memory only severity",
    "resolve good.json": "num-gpus recipe model target argument format",
    "diff good.json good.json": "num-gpus format",
    "estimate llama-3.1-8b": "num-gpus gpus-per-node micro-batch-size seq-len ds-config zero-stage precision"
    " lora-rank lora-targets trainable-parameters freeze gpu gpu-memory fit optimizer plot",
    "schema": "output",
    "gpus": "format",
    "models": "format",
    "train": "recipe model_ training task.seq_len_",
    "generate": "batch-size seed max-prompt-tokens output dtype",
    "rehearse": "num-gpus gpus-per-node gpu gpu-memory steps rank timeout trace",
    "quickstart": "max-steps output",
}
"""What follows ``zerokit``, and the options that get a value."""


def of_options(random_: random.Random) -> Case:
    if random_.random() < 0.1:
        topic = random_.choice([*WORDS, "zero_optimization.stag", "stage3_*", "lost-argument"])
        return Case("explain", ("explain", topic))
    line = random_.choice([*_OPTIONS])
    command, *first = line.split()
    options = _OPTIONS[line].split()
    words = [word if random_.random() < 0.7 else random_.choice(WORDS) for word in first]
    for option in random_.sample(options, min(len(options), random_.randint(1, 2))):
        words.append(f"--{option}={random_.choice(WORDS)}")
    if command in ("generate", "rehearse", "quickstart", "schema", "train") or random_.random() < 0.2:
        words.append(f"--{random_.choice(['nonsense', 'num_gpu', '', '💥', 'help=1', 'format'])}")
    writes = any(word.startswith(("--output", "--plot", "--trace")) for word in words)
    files = {"good.json": json.dumps(CONFIG).encode()}
    return Case(f"{command}, options", (command, *words), files, writes=writes)


MAKERS = [
    of_check,
    of_check,
    of_resolve,
    of_diff,
    of_estimate,
    of_estimate,
    of_train,
    of_options,
    of_options,
    of_options,
]


def case(number: int) -> Case:
    """The case of a seed."""
    random_ = random.Random(number)
    return MAKERS[number % len(MAKERS)](random_)


def lay_out(made: Case, folder: Path) -> None:
    """Write the files of a case into an empty folder."""
    for name, content in made.files.items():
        file = folder / name
        if callable(content):
            content(file)
        else:
            file.write_bytes(content)


def contents(folder: Path, but: frozenset[str]) -> dict[str, tuple[int, int]]:
    """Size and time of change of all in a folder, but what the case is asked to write."""
    found = {}
    for entry in os.scandir(folder):
        if entry.name not in but:
            status = entry.stat(follow_symlinks=False)
            found[entry.name] = (status.st_size, status.st_mtime_ns)
    return found
