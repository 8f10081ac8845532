"""What is done to content that was right: damaged, distorted, hostile, or no file at all.

Each takes a random generator: the same seed does the same.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

Write = bytes | Callable[[Path], None]
"""The content of a file, or what makes it."""

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
    *([], {}, [[]], [1, "a", None], {"": {"": {}}}, {"stage": {"stage": 3}}, "x" * 300_000, "%s%n{0}{{x}}${HOME}"),
]
WORDS = [
    *("", " ", "-1", "0", "1e400", "nan", "99999999999999999999", "0x10", "١٢", "80GiB", "-80GiB", "1,2,,3"),
    *("a,b", "💥", "\x1b[31m", "\u202e", "none.json", ".", "/", "/dev/null", "/dev/zero", "x" * 5000, "--", "-"),
    *("a/b/c/d", "~nobody", "%s", "$(id)", "trainer", "json", "NaN", "True", "None", "[]", "{}", "key=value"),
    *("=", "a=", "=b", "zero_optimization.stage", "..", "\udcff"),
]


def mangled(content: bytes, random_: random.Random) -> bytes:
    """Bytes that were cut, flipped, moved or repeated, or are of another kind of file."""
    at = random_.randrange(len(content))
    kind = random_.randrange(6)
    if kind == 0:
        return content[:at]
    if kind == 1:
        flipped = bytearray(content)
        for _ in range(random_.randint(1, 20)):
            flipped[random_.randrange(len(flipped))] = random_.randrange(256)
        return bytes(flipped)
    if kind == 2:
        return content[at:] + content[:at]
    if kind == 3:
        return content * random_.randint(2, 400)
    if kind == 4:
        return random_.choice(_OTHER_FILES)
    return random_.randbytes(random_.choice([1, 100, 100_000]))


_OTHER_FILES = [
    b"",
    b"<!DOCTYPE html><html></html>",
    b"version https://git-lfs.github.com/spec/v1\n",
    b"\x7fELF" * 99,
    b"PK\x03\x04",
    b"%PDF",
    b"\x1f\x8b\x08",
]


def damaged(text: str, random_: random.Random) -> bytes:
    """A text that was mangled, mixed up or saved as something else."""
    content = text.encode()
    at = random_.randrange(len(content))
    kind = random_.randrange(11)
    if kind < 5:
        return mangled(content, random_)
    if kind == 5:
        return content[:at] + random_.choice(_STRAY).encode() + content[at:]
    if kind == 6:
        return text.encode(random_.choice(["utf-16", "utf-32", "utf-8-sig", "cp037"]))
    if kind == 7:
        lines = text.splitlines()
        return "\n".join([*lines[: at % len(lines)], "<<<<<<< HEAD", *lines, "=======", *lines, ">>>>>>> x"]).encode()
    if kind == 8:
        return random_.choice([b"\n", b"null", b"[]", b'""', b"0", b"\xef\xbb\xbf", b"{}", b"---\n---\n", b"[{}]"])
    if kind == 9:
        deep = random_.choice([150, 250, 5_000, 200_000])
        return b'{"a":' * deep + b"1" + b"}" * random_.choice([deep, 0])
    return text.replace('"', random_.choice(["'", "“", ""])).replace(":", random_.choice([":", "=", " "])).encode()


_STRAY = [*'}]{,:"\\#', "//", "\t", "\0", "\x1b[31m", "NaN", "\u2028", "&a ", "*a "]


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each entry of nested data."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from places(value, (*path, key))


def distorted(data: Any, random_: random.Random) -> Any:
    """Data of which some entries have other values or names, or are doubled, gone or many."""
    data = copy.deepcopy(data)
    for _ in range(random_.randint(1, 4)):
        path = random_.choice([*places(data)] or [()])
        if not path:
            return copy.deepcopy(random_.choice(ODD))
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
            section[path[-1]] = copy.deepcopy(random_.choice(ODD))
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
    b"a: &a [x,x]\n" + b"".join(b"%c: &%c [*%c,*%c,*%c,*%c]\n" % (c, c, *[c - 1] * 4) for c in range(98, 112)),
    b"model: !!python/object/apply:os.system ['touch owned']\n",
    b"a: &a\n  b: *a\n",
    b"? {a: b}\n: c\n",
    b"model: *nowhere\n",
    b"<<: {<<: {a: 1}}\nmodel: 2024-99-99\n",
    b"model: 0o17\ndata: 1_000\ntask: 12:30:45\ntraining: !!binary x\n",
    b"".join(b"k%d: &x%d {a: 1}\n" % (number, number) for number in range(20_000)),
    b"\ttraining: 1\n",
    b"%YAML 9.9\n---\na: 1\n",
    b"model: " + b"1:" * 400_000 + b"1\n",
    b"model: 0x" + b"f" * 900_000,
    b"".join(b"%d: 0\n" % (number * (2**61 - 1)) for number in range(1, 10_000)),
    b"model: !!bool x\ndata: !!timestamp x\n",
    b"model: >\n" + b"  x\n" * 900_000,
]


def special(random_: random.Random) -> Write:
    """What is not an ordinary file, or is far too large."""

    def sparse(file: Path) -> None:
        with file.open("wb") as opened:
            opened.truncate(200 << 20)

    def large(file: Path) -> None:
        file.write_text(json.dumps({f"key_{number}": number for number in range(150_000)}))

    def unreadable(file: Path) -> None:
        file.write_bytes(b"{}")
        file.chmod(0)

    return random_.choice(
        [
            os.mkfifo,
            unreadable,
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
