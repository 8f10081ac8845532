"""The wheel: what it carries, what its light part needs, and that everything imported is declared."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests import processes
from tests.sources import parsed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
HEAVY = ("torch", "transformers", "deepspeed", "accelerate", "datasets", "numpy", "huggingface_hub")
POSIX_ONLY = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
POSIX_ONLY_IN_OS = (
    *("fchmod", "chown", "fchown", "lchown", "getuid", "geteuid", "getgid", "getegid", "fork", "killpg", "setsid"),
    *("getpgid", "statvfs", "mkfifo", "uname", "fdatasync", "O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity"),
)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    processes.checked(command, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def light_packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel beside what `pip install zerokit` brings, and nothing else."""
    folder = tmp_path_factory.mktemp("light")
    zipfile.ZipFile(wheel).extractall(folder)
    seen: set[str] = set()
    waiting = list(_needed(PROJECT["dependencies"]))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            installed = distribution(name)
            waiting += _needed(installed.requires or [])
            _link(installed, folder)
    assert "torch" not in seen
    return folder


def _needed(requirements: list[str]) -> Iterator[str]:
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _link(installed: Distribution, folder: Path) -> None:
    for top in {Path(str(file)).parts[0] for file in installed.files or []} - {"..", "__pycache__"}:
        (folder / top).symlink_to(Path(str(installed.locate_file(top))))


def run_light(folder: Path, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run code with no site-packages but `folder`, and without what only POSIX has."""
    hide = (
        f"import os, sys; sys.modules.update(dict.fromkeys({POSIX_ONLY!r}))\n"
        f"[delattr(os, name) for name in {POSIX_ONLY_IN_OS!r} if hasattr(os, name)]\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "HOME": str(cwd)}
    return processes.run([sys.executable, "-S", "-c", hide + code], env=environment, cwd=cwd)


_ESTIMATE = ("estimate", "qwen2.5-0.5b", "--num-gpus", "8", "--zero-stage", "3", "--seq-len", "512")
LIGHT = [
    (("--help",), 0),
    (("config", "--preset", "zero3", "-o", "ds.json"), 0),
    (("check", "ds.json", "--num-gpus", "8", "--target", "trainer"), 0),
    (("resolve", "ds.json", "--num-gpus", "8", "--model", "llama-3.1-8b"), 0),
    (("diff", "ds.json", "ds.json"), 0),
    (("explain", "zero_optimization.overlap_comm"), 0),
    (("schema",), 0),
    (("schema", "--recipe"), 0),
    (("estimate", "llama-3.1-8b", "--num-gpus", "8", "--zero-stage", "3", "--seq-len", "4096"), 0),
    (("estimate", "qwen2.5-0.5b", "--num-gpus", "8", "--ds-config", "ds.json", "--seq-len", "512"), 0),
    ((*_ESTIMATE, "--html", "page.html"), 0),
    ((*_ESTIMATE, "-o", "estimate.json"), 0),
    (("report", "estimate.json"), 0),
    (("check", "not-there.json"), 2),
    (("rehearse", "--num-gpus", "8", "train.py"), 2),
    (("train", "--help"), 0),
    (("train", "--print-recipe"), 0),
    (("generate", "--help"), 0),
    (("train",), 2),
    (("quickstart",), 2),
]


def test_light_commands_work_from_the_wheel_alone(light_packages: Path, tmp_path: Path) -> None:
    """All in one process, which imports what they share once."""
    code = (
        "import json\n"
        "from zerokit.cli.main import main\n"
        "os._exit = sys.exit  # as which ranks leave\n"
        "codes = []\n"
        f"for words in {[words for words, _ in LIGHT]!r}:\n"
        "    sys.argv = ['zerokit', *words]\n"
        "    try: main()\n"
        "    except SystemExit as stop: codes.append(stop.code)\n"
        "print('\\n' + json.dumps(codes))"
    )
    answer = run_light(light_packages, code, tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == [code for _, code in LIGHT], answer.stderr
    assert "Traceback" not in answer.stderr


def test_python_api_works_from_the_wheel_alone(light_packages: Path, tmp_path: Path) -> None:
    code = (
        "import zerokit\n"
        "print(zerokit.__file__)\n"
        "zerokit.DSConfig(zero_optimization={'stage': 3}).check(num_gpus=8)\n"
        "zerokit.estimate('llama-3.1-8b', num_gpus=8, zero_stage=3).device.peak_bytes\n"
        f"assert not set({HEAVY!r}) & set(sys.modules)"
    )
    answer = run_light(light_packages, code, tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith(str(light_packages))


def test_the_wheel_has_all_that_is_not_python(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, place in (("ds_configs", "zerokit/ds_configs"), ("docs/schema", "zerokit/schema")):
        for file in (ROOT / folder).rglob("*.json"):
            assert f"{place}/{file.relative_to(ROOT / folder)}" in names
    for file in (ROOT / "zerokit").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert str(file.relative_to(ROOT)) in names


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_everything_imported_is_declared() -> None:
    declared = set()
    for requirements in (PROJECT["dependencies"], *(EXTRAS[extra] for extra in EXTRAS if extra != "dev")):
        declared |= {_plain(Requirement(text).name) for text in requirements}
    of_module = packages_distributions()
    for file in (ROOT / "zerokit").rglob("*.py"):
        for module in set(_imported(parsed(file))) - sys.stdlib_module_names - {"zerokit"}:
            owners = {_plain(name) for name in of_module.get(module, [module])}
            assert owners & declared, f"{file.relative_to(ROOT)} imports {module}, which nothing declares"
