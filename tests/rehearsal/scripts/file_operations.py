"""Files of the current folder, changed and read at random: `python file_operations.py SEED COUNT`.

Prints what each operation answers and, at the end, all that there is: the same on a disk and on an overlay.
"""

# The calls of the system are what is tried.
# ruff: noqa: PTH100, PTH102, PTH103, PTH106, PTH108, PTH109, PTH114, PTH115, PTH116, PTH118, PTH123, PTH211

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANCE = random.Random(int(sys.argv[1]))
TOP = str(Path.cwd())
COMMANDS = (
    "find {p} | sort",
    "mv {p} {q}",
    "rm -rf {p}",
    "cp -r {p} {q}",
    "echo s >> {p}",
    "mkdir -p {p}",
    "ln -s {q} {p}",
    "touch {p}",
    "cd {p} && pwd && echo z > z && cat z && rm z",
    "mktemp -d -p . | wc -l; rm -rf tmp.*",
)


def some_path() -> str:
    names = [
        CHANCE.choice("abcd" if CHANCE.random() < 0.85 else [".", "..", "l"]) for _ in range(CHANCE.randint(1, 3))
    ]
    return "/".join(names)


def stays_inside(path: str) -> bool:
    there = os.path.normpath(os.path.join(os.path.relpath(Path.cwd(), TOP), path))
    return not there.startswith("..") and there != "." and not path.endswith(".")


def written(mode: str) -> Callable[[str, str], str]:
    def write(path: str, _: str) -> str:
        with open(path, mode) as file:
            file.write("new")
            file.seek(0)
            return file.read() if "+" in mode else ""

    return write


def kind_and_size(found: os.stat_result) -> tuple[int, int]:
    return stat.S_IFMT(found.st_mode), found.st_size if stat.S_ISREG(found.st_mode) else 0


def listed(path: str | int, _: str = "") -> list[Any]:
    return sorted((entry.name, entry.is_dir(), entry.is_file(), entry.is_symlink()) for entry in os.scandir(path))


def copied(path: str, to: str) -> None:
    if not os.path.realpath(to).startswith(os.path.realpath(path)):
        shutil.copytree(path, to, symlinks=True)


def in_open_folder(path: str, _: str) -> list[Any]:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    steps: tuple[Callable[[], Any], ...] = (
        lambda: listed(folder),
        lambda: os.mkdir("a", dir_fd=folder),
        lambda: os.unlink("b", dir_fd=folder),
        lambda: os.rename("c", "d", src_dir_fd=folder, dst_dir_fd=folder),
        lambda: os.close(os.open("b", os.O_CREAT | os.O_WRONLY, dir_fd=folder)),
        lambda: kind_and_size(os.stat("d", dir_fd=folder, follow_symlinks=False)),
    )
    answers = []
    for step in steps:
        try:
            answers.append(step())
        except OSError as error:
            answers.append(error.errno)
    os.close(folder)
    return answers


def shell(path: str, to: str) -> tuple[int, str]:
    command = CHANCE.choice(COMMANDS).format(p=path, q=to)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    return done.returncode, done.stdout


OPERATIONS: tuple[Callable[[str, str], Any], ...] = (
    *map(written, ("w", "a", "r+", "x")),
    lambda path, _: Path(path).read_text(),
    lambda path, _: os.mkdir(path),
    lambda path, _: os.makedirs(path, exist_ok=True),
    lambda path, _: os.rmdir(path),
    lambda path, _: os.unlink(path),
    os.rename,
    os.replace,
    lambda path, to: os.symlink(to, path),
    lambda path, to: os.symlink(f"{TOP}/{to}", path),
    lambda path, _: shutil.rmtree(path),
    copied,
    shutil.copy2,
    shutil.move,
    listed,
    lambda path, _: kind_and_size(os.lstat(path)),
    lambda path, _: kind_and_size(os.stat(path)),
    lambda path, _: os.path.realpath(path),
    lambda path, _: os.truncate(path, 2),
    lambda path, _: os.readlink(path),
    lambda path, _: (os.chdir(path), os.getcwd()),
    lambda *_: os.chdir(TOP),
    in_open_folder,
    shell,
    shell,
)


def main() -> None:
    for number in range(int(sys.argv[2])):
        operation, path, to = CHANCE.choice(OPERATIONS), some_path(), some_path()
        if not stays_inside(path) or not stays_inside(to):
            continue
        if CHANCE.random() < 0.3:
            path = os.path.abspath(path)
        try:
            answer = operation(path, to)
        except (OSError, shutil.Error) as error:
            answer = type(error).__name__, error.errno
        try:
            inside = os.getcwd().startswith(TOP)
        except OSError:  # it has been removed
            inside = False
        if not inside:
            os.chdir(TOP)
        print(number, path, to, answer)
    os.chdir(TOP)
    for folder, folders, names in os.walk("."):
        for name in sorted([*folders, *names]):
            path = os.path.join(folder, name)
            content = Path(path).read_text() if stat.S_ISREG(os.lstat(path).st_mode) else ""
            print(path, kind_and_size(os.lstat(path)), content, os.readlink(path) if os.path.islink(path) else "")


if __name__ == "__main__":
    main()
