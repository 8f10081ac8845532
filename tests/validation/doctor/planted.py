"""Faults planted one by one, for real, and what `zerokit doctor` says of them.

``python -m tests.validation.doctor.planted [--only WORD]`` plants each in namespaces of this machine or on
the second of two hosts, runs the whole command, and rewrites results/doctor.json. Each must be found, and
nothing but it: the first row of each kind is without a fault. It needs Linux, and root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.control_groups import control_groups
from tests.validation.launched.hosts_drill import environment
from tests.validation.launched.two_hosts import Hosts, two_hosts
from zerokit.distributed.ranks import free_port
from zerokit.units import GIB

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "doctor.json"
_DOCTOR = [sys.executable, "-c", "from zerokit.cli.main import main; main()", "doctor", "--format", "json"]
_SILENT = ("shared memory", "open files", "host memory")
"""What the machine itself may lack."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a machine.

    Args:
        name: of the row.
        found: a regular expression for what is said, with the look's name before it; None: nothing is wrong.
        shell: what a shell does before, with mounts and a name of its own.
        takes_port: whether another process has the port.
        group_bytes: of the memory that a control group grants.
        on_second: what is done to the second of two hosts; the doctor runs on the first.
    """

    name: str
    found: str | None
    shell: str = ""
    takes_port: bool = False
    group_bytes: int | None = None
    on_second: Callable[[Hosts, Path], None] | None = None


def _nothing(hosts: Hosts, folder: Path) -> None:
    """Both are alike."""


def _no_data(hosts: Hosts, folder: Path) -> None:
    hosts.second.run("mount", "-t", "tmpfs", "tmpfs", folder / "data")


def _other_version(hosts: Hosts, folder: Path) -> None:
    (file,) = (file for file in metadata.files("deepspeed") or () if file.name == "METADATA")
    original = Path(str(file.locate()))
    changed = folder / "METADATA"
    changed.write_text(re.sub(r"(?m)^Version: .*$", "Version: 0.0.1", original.read_text("utf-8")), "utf-8")
    hosts.second.run("mount", "--bind", changed, original)


def _late_clock(hosts: Hosts, folder: Path) -> None:
    """Of Python there, as all namespaces of one machine have its clock."""
    changed = folder / "late_json.py"
    late = "import time as _time\n_now = _time.time\n_time.time = lambda: _now() + 600\n"
    changed.write_text(Path(json.__file__).read_text("utf-8") + late, "utf-8")
    hosts.second.run("mount", "--bind", changed, json.__file__)


def _finds_itself(hosts: Hosts, folder: Path) -> None:
    (folder / "names").write_text("127.0.0.1 localhost\n127.0.1.1 beta\n10.77.0.1 alpha\n")
    hosts.second.run("mount", "--bind", folder / "names", "/etc/hosts")


_STUB = "mkdir bin && printf '#!/bin/sh\\necho 7.5.0\\n' > bin/c++ && chmod +x bin/c++"
FAULTS = (
    Fault("nothing", None),
    Fault("/dev/shm is full", "shared memory: .*--shm-size", "mount -t tmpfs -o size=1m tmpfs /dev/shm"),
    Fault("'ulimit -n 64'", "open files: 64 can be open at once.*ulimit -n", "ulimit -S -n 64"),
    Fault("no compiler", r"compiler: no C\+\+ compiler.*apt install", f"export PATH={Path(sys.executable).parent}"),
    Fault("an old compiler", r"compiler: .*7\.5\.0.*CXX=", f"{_STUB} && export PATH=$PWD/bin:$PATH"),
    Fault(
        "a lock that a killed compiler left",
        "extensions: .*own/adam/lock: torch waits.*rm ",
        "mkdir -p own/adam && touch own/adam/lock && export TORCH_EXTENSIONS_DIR=$PWD/own",
    ),
    Fault(
        "the host's name leads to 127.0.1.1",
        r"host name: 'planted' leads to 127\.0\.1\.1.*GLOO_SOCKET_IFNAME",
        "hostname planted && echo 127.0.1.1 planted > hosts && mount --bind hosts /etc/hosts",
    ),
    Fault("its port is taken", "port: another process has port.*--master_port", takes_port=True),
    Fault("the output is read-only", "output: .*Read-only.*output_dir", "mkdir out && mount -t tmpfs -o ro tmpfs out"),
    Fault("a control group of 1 GiB", "host memory: 1.00 GiB.*--memory", group_bytes=GIB),
    Fault("two hosts, nothing", None, on_second=_nothing),
    Fault(
        "another version on a host", "host beta: has other versions: deepspeed 0.0.1.*pip", on_second=_other_version
    ),
    Fault("data missing on a host", "host beta: lacks .*pairs.jsonl.*Copy", on_second=_no_data),
    Fault("the clock of a host is off by 10 minutes", "host beta: its clock is off by.*ntp", on_second=_late_clock),
    Fault(
        "the name of a host leads to 127.0.1.1 there",
        r"host beta: its name 'beta' leads to 127\.0\.1\.1 there.*GLOO_SOCKET_IFNAME",
        on_second=_finds_itself,
    ),
)


def examined(fault: Fault, folder: Path) -> list[dict[str, Any]]:
    """What the doctor checks, with the fault in place; `folder` is an empty one."""
    (folder / "data").mkdir()
    (folder / "data" / "pairs.jsonl").write_text('{"text": "a"}\n')
    (folder / "r.yaml").write_text(
        f"model: {folder}\ndata: {{train: {folder}/data/pairs.jsonl}}\ntraining: {{output_dir: {folder}/out}}\n"
    )
    command = [*_DOCTOR, "--recipe", "r.yaml"]
    variables = {**os.environ, **environment(), "XDG_CACHE_HOME": str(folder / "cache")}
    variables.pop("TORCH_EXTENSIONS_DIR", None)
    with ExitStack() as running:
        if fault.on_second is not None:
            (folder / "hosts").mkdir()
            hosts = running.enter_context(two_hosts(folder / "hosts", environment()))
            fault.on_second(hosts, folder)
            line = hosts.first.words(*command, "--hostfile", hosts.hostfile, folder=folder)
        else:
            port = free_port()
            if fault.takes_port:
                taken = running.enter_context(socket.socket())
                taken.bind(("", port))
                taken.listen()
            limits = [("memory/memory.limit_in_bytes", str(fault.group_bytes))] * bool(fault.group_bytes)
            joins = running.enter_context(control_groups(*limits))
            lines = [*joins, fault.shell, shlex.join([*command, "--master-port", str(port)])]
            line = ["unshare", "--mount", "--uts", "bash", "-c", "\n".join(lines)]
        done = subprocess.run(
            line, cwd=folder, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
    assert done.stdout, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["checks"]
    return results


def row(fault: Fault) -> dict[str, Any]:
    """What is found, and what is wrong with that."""
    with TemporaryDirectory() as folder:
        told = {
            f"{result['name']}: {result['message']}. {result['fix']}".replace(folder, "..."): result["status"]
            for result in examined(fault, Path(folder))
            if result["status"] in ("warning", "error")
        }
    found = [line for line in told if fault.found is not None and re.search(fault.found, line)]
    others = [line for line in told if line not in found and not line.startswith(_SILENT)]
    wrong = ["not found"] * (fault.found is not None and not found)
    return {
        "fault": fault.name,
        "verdict": told[found[0]] if found else "ok",
        "said": found[0] if found else "",
        "wrong": [*wrong, *(f"also: {line}" for line in others)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="only faults with it in their name")
    given = parser.parse_args()
    rows = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else []
    known = {one["fault"]: one for one in rows}
    for fault in FAULTS:
        if given.only in fault.name:
            made = known[fault.name] = row(fault)
            print(f"{fault.name}: {made['verdict']}: {made['said']} {made['wrong'] or ''}", flush=True)
            rows = [known[one.name] for one in FAULTS if one.name in known]
            WRITTEN.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
