"""Trains and generates on two hosts, sound ones and broken ones, and writes what came of it.

``python -m tests.validation.launched.hosts_drill`` rewrites results/two_hosts.json; ``--only`` takes
beginnings of names. A sample runs in tests/launched/test_two_hosts.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer
from tests.validation.launched.two_hosts import Host, Hosts, two_hosts

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "two_hosts.json"
MOST_SECONDS = 60.0
"""From a fault to the end of the run."""
_BIN = Path(sys.executable).parent
_ENDLESS = 10_000
"""Steps of a run that a fault is to end."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One run.

    Args:
        name: of the row.
        launcher: ``pdsh`` (deepspeed over ssh), ``no_ssh`` (deepspeed on each), ``torchrun``, ``accelerate``;
            ``script``: what ``launch-script --doctor`` writes for torchrun.
        stage: of ZeRO.
        generates: whether it generates instead of training.
        before, during: what happens to the hosts before it starts, or while it trains, after its second step.
        says: a regular expression for what a person must be told; None: the run must end well, with the
            losses or texts of one host.
    """

    name: str
    launcher: str
    stage: int
    generates: bool = False
    before: Callable[[Hosts, Path], None] | None = None
    during: Callable[[Hosts], None] | None = None
    says: str | None = None


def _slow_network(hosts: Hosts, folder: Path) -> None:
    hosts.cable.delay_seconds, hosts.cable.lost_share = 0.05, 0.01  # each way


def _no_data(hosts: Hosts, folder: Path) -> None:
    hosts.second.run("mount", "-t", "tmpfs", "tmpfs", folder / "data")


def _other_version(hosts: Hosts, folder: Path) -> None:
    """A second host whose zerokit says that it is another version."""
    changed = folder / "other_version.py"
    original = REPOSITORY / "zerokit" / "__init__.py"
    text = original.read_text(encoding="utf-8")
    changed.write_text(re.sub(r"(?m)^__version__ = .*$", '__version__ = "0.0.1"', text), encoding="utf-8")
    hosts.second.run("mount", "--bind", changed, original)


def _lead_to_themselves(hosts: Hosts, folder: Path) -> None:
    """Names as Debian's installer gives them: each host's own leads to 127.0.1.1 on it."""
    both = (hosts.first, hosts.second)
    for host, other in (both, both[::-1]):
        file = folder / f"hosts-of-{host.name}"
        lines = ("127.0.0.1 localhost", f"127.0.1.1 {host.name}", f"{other.address} {other.name}", "")
        file.write_text("\n".join(lines), encoding="utf-8")
        host.run("mount", "--bind", file, "/etc/hosts")


def _pull_cable(hosts: Hosts) -> None:
    hosts.cable.is_pulled = True


def _disappear(hosts: Hosts) -> None:
    hosts.second.disappear()


CASES = [
    *(Case(f"train, ZeRO-{stage}, {how}", how, stage) for stage, how in ((2, "pdsh"), (3, "pdsh"))),
    *(Case(f"train, ZeRO-2, {how}", how, 2) for how in ("no_ssh", "torchrun", "accelerate")),
    Case("generate, ZeRO-3, pdsh", "pdsh", 3, generates=True),
    Case("train, 100 ms and 1 % lost", "pdsh", 2, before=_slow_network),
    Case("names lead to 127.0.1.1, launch-script --doctor", "script", 2, before=_lead_to_themselves),
    Case(
        "data missing on the second",
        "pdsh",
        2,
        before=_no_data,
        says=r"zerokit: error: .*on beta: no such file: .*pairs\.jsonl",
    ),
    Case(
        "another version on the second",
        "torchrun",
        2,
        before=_other_version,
        says=r"zerokit: error: rank 1 on beta: has other versions: zerokit 0\.0\.1 \(on alpha ",
    ),
    *(
        Case(f"cable pulled, {how}", how, 2, during=_pull_cable, says="does not answer any more")
        for how in ("pdsh", "torchrun")
    ),
    *(
        Case(
            f"second host gone, {how}",
            how,
            2,
            during=_disappear,
            says=r"has ended without a word|has lost another rank",
        )
        for how in ("pdsh", "torchrun")
    ),
]


@contextmanager
def prepared() -> Iterator[Path]:
    """A folder with a model and data for all cases."""
    with TemporaryDirectory() as path:
        folder = Path(path)
        tiny_tokenizer(folder / "model")
        tiny_llama(folder / "model", initializer_range=0.05)
        (folder / "data").mkdir()
        pairs = [{"prompt": "the for statement " * (1 + i % 3), "completion": " is used"} for i in range(16)]
        text = "".join(json.dumps(pair) + "\n" for pair in pairs)
        (folder / "data" / "pairs.jsonl").write_text(text, encoding="utf-8")
        (folder / "prompts.txt").write_text("the for statement\na class\nwhat does\n", encoding="utf-8")
        yield folder


def _words(case: Case, folder: Path, out: Path) -> list[str | Path]:
    if case.generates:
        options = ["--model", folder / "model", "--prompts", folder / "prompts.txt", "-o", out / "texts.jsonl"]
        return ["launch/generate.py", *options, "--max_new_tokens", "8", "--do_sample", "false"]
    recipe = {
        "model": str(folder / "model"),
        "data": {"train": str(folder / "data" / "pairs.jsonl"), "eval_fraction": 0},
        "task": {"seq_len": 64},
        "training": {
            "output_dir": str(out / "run"),
            "max_steps": _ENDLESS if case.during else 4,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "save_strategy": "no",
            "bf16": False,
        },
        "deepspeed": {"zero_optimization": {"stage": case.stage}},
    }
    (out / "recipe.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return ["launch/train.py", "--recipe", out / "recipe.yaml"]


def _result(case: Case, out: Path) -> Any:
    if case.generates:
        return (out / "texts.jsonl").read_text(encoding="utf-8")
    lines = (out / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


def on_one_host(case: Case, folder: Path) -> Any:
    """The losses, or texts, of two ranks of this machine."""
    with TemporaryDirectory(dir=folder) as path:
        done = launch(_words(case, folder, Path(path)), ranks=2, launcher="none")
        assert done.returncode == 0, done.stderr[-3000:]
        return _result(case, Path(path))


def environment() -> dict[str, str]:
    """Of runs on both hosts."""
    path = f"{_BIN}{os.pathsep}{os.environ['PATH']}"
    alive = "-o ServerAliveInterval=10 -o ServerAliveCountMax=3"  # as docs/how-to/several-machines.md says
    own = {"PATH": path, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return own | {"PYTHONPATH": str(REPOSITORY), "PDSH_SSH_ARGS_APPEND": alive}


def _starts(case: Case, words: list[str | Path], hosts: Hosts) -> list[tuple[Host, list[str | Path]]]:
    if case.launcher == "pdsh":
        return [(hosts.first, ["deepspeed", "--hostfile", hosts.hostfile, *words])]
    both = list(enumerate((hosts.first, hosts.second)))
    at = ["--master_addr", hosts.first.address, "--master_port", "29500"]
    if case.launcher == "no_ssh":
        options = ["--hostfile", hosts.hostfile, "--no_ssh", *at]
        return [(host, ["deepspeed", *options, "--node_rank", str(rank), *words]) for rank, host in both]
    if case.launcher == "script":
        script = _script(hosts, words)
        address = f"MASTER_ADDR={hosts.first.address}"
        return [(host, ["env", address, f"NODE_RANK={rank}", "bash", script]) for rank, host in both]
    if case.launcher == "torchrun":
        options = ["--nnodes", "2", "--nproc-per-node", "1", *at]
        return [(host, ["torchrun", *options, "--node-rank", str(rank), *words]) for rank, host in both]
    config = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",  # as launch-script has it: torchrun, whatever the device
        "num_machines": 2,
        "num_processes": 2,
        "main_process_ip": hosts.first.address,
        "main_process_port": 29500,
        "mixed_precision": "no",
    }
    file = hosts.hostfile.with_name("accelerate.yaml")
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    launcher: list[str | Path] = ["accelerate", "launch", "--config_file", file]
    return [(host, [*launcher, "--machine_rank", str(rank), *words]) for rank, host in both]


def _script(hosts: Hosts, words: list[str | Path]) -> Path:
    """What the doctor finds on the first host, and the script that is written with that."""
    report, script = (hosts.hostfile.with_name(name) for name in ("doctor.json", "run.sh"))
    zerokit = [sys.executable, "-c", "from zerokit.cli.main import main; main()"]
    looks = [*zerokit, "doctor", "--hostfile", hosts.hostfile, "--format", "json"]
    variables = os.environ | environment()
    done = subprocess.run(hosts.first.words(*looks, folder=REPOSITORY), env=variables, capture_output=True, text=True)
    report.write_text(done.stdout, encoding="utf-8")
    writes = ["launch-script", words[-1], "--for", "torchrun", "--num-nodes", "2", "--gpus-per-node", "1"]
    line = [*zerokit, *writes, "--doctor", report, "-o", script]
    subprocess.run(hosts.first.words(*line, folder=REPOSITORY), env=variables, check=True)
    return script


def run(case: Case, folder: Path, reference: Any = None) -> Row:
    """Run `case`, and say what is wrong with how it went.

    Args:
        case: the run.
        folder: as :func:`prepared` makes it.
        reference: what :func:`on_one_host` gives, for cases that must end well.
    """
    with TemporaryDirectory(dir=folder) as path:
        out = Path(path)
        (out / "hosts").mkdir()
        with two_hosts(out / "hosts", environment()) as hosts:
            if case.before is not None:
                case.before(hosts, folder)
            outcome = _run(case, _starts(case, _words(case, folder, out), hosts), hosts)
            wrong = list(_wrong(case, outcome, hosts))
        if not wrong and case.says is None and _result(case, out) != reference:
            wrong.append(f"{_result(case, out)} instead of {reference}")
    row = {"case": case.name, "exit_code": outcome.exit_code, "seconds": outcome.seconds}
    return row | {"line": outcome.line, "wrong": wrong, "said": outcome.said}


@dataclass
class _Outcome:
    exit_code: int
    seconds: float | None
    """From the fault to the end; from the start, where the fault was there before."""
    said: str
    line: str
    """What zerokit said of it."""


def _run(case: Case, starts: list[tuple[Host, list[str | Path]]], hosts: Hosts) -> _Outcome:
    variables: Mapping[str, str] = os.environ | environment()
    said: list[str] = []
    trains = threading.Event()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "step 2/" in line:
                trains.set()
        trains.set()  # it has ended

    started = []
    begin = time.monotonic()
    for host, words in starts:
        process = subprocess.Popen(
            host.words(*words, folder=REPOSITORY),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append((process, threading.Thread(target=read, args=(process,))))
        started[-1][1].start()
    seconds = None
    if case.during is not None:
        trains.wait()
        begin = time.monotonic()
        case.during(hosts)
    for process, reader in started:
        process.wait()
        reader.join()
    if case.says is not None:
        seconds = round(time.monotonic() - begin, 1)
    text = "".join(said)
    found = re.search(case.says, text) if case.says else None
    line = ""
    if found:
        line = text[text.rfind("\n", 0, found.start()) + 1 : text.find("\n", found.end())]
    return _Outcome(started[0][0].returncode, seconds, text, line)


def _wrong(case: Case, outcome: _Outcome, hosts: Hosts) -> Iterator[str]:
    if (outcome.exit_code == 0) != (case.says is None):
        yield f"exit code {outcome.exit_code}"
    if case.says is not None and not outcome.line:
        yield f"nobody says {case.says}"
    for host in (hosts.first, hosts.second):
        if host.runs:
            left = host.processes()
            if left:
                yield f"left on {host.name}: {left}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", help="beginnings of cases' names")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.only or any(case.name.startswith(name) for name in options.only)]
    rows: list[Row] = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else []
    references: dict[tuple[int, bool], Any] = {}
    with prepared() as folder:
        for case in chosen:
            like = (case.stage, case.generates)
            if case.says is None and like not in references:
                references[like] = on_one_host(case, folder)
            row = run(case, folder, references.get(like))
            said = row.pop("said")
            if row["seconds"] is not None and row["seconds"] > MOST_SECONDS:
                row["wrong"].append(f"{row['seconds']} s until the end")
            print(f"{row['case']}: {row['exit_code']}, {row['seconds']} s, {row['line']} {row['wrong']}", flush=True)
            if row["wrong"]:
                print(said)
            rows = [one for one in rows if one["case"] != case.name] + [row]
    order = [case.name for case in CASES]
    rows.sort(key=lambda row: order.index(row["case"]))
    WRITTEN.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
