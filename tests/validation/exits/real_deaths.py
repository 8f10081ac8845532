"""Ways to die, each produced for real, and what ``explain-exit`` says of its log.

``python -m tests.validation.exits.real_deaths [--only WORD] [--write]`` starts tiny scripts under plain
`deepspeed`, `torchrun`, `accelerate launch` and `zerokit train`, two CPU ranks each, has them die, and
compares the cause that is told with the one that was planted. With ``--write`` the table goes into
results/deaths.json and records/deaths.md. It needs Linux, and root for namespaces and control groups.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import deepspeed

from tests.tiny import ONE_STEP_RECIPE, REPOSITORY, tiny_llama, tiny_tokenizer
from tests.validation.control_groups import control_groups
from tests.validation.exits.deaths import DEATHS, Death
from zerokit.distributed.extensions import own_folder
from zerokit.distributed.process_table import children_of, stat_of, variables_of
from zerokit.distributed.ranks import free_port
from zerokit.exits.explain import explain_log
from zerokit.exits.log import read_log

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "deaths.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "deaths.md"
BEGIN, END = "<!-- deaths -->\n", "<!-- /deaths -->\n"
_BIN = Path(sys.executable).parent
_PACKAGES = Path(deepspeed.__file__).parents[1]
_MOST_SECONDS = 300.0
_MOST_LOOKS = 3000
"""For the moment to strike."""

_RECIPE = ONE_STEP_RECIPE.replace("max_steps: 1", "max_steps: 100000") + "  save_strategy: 'no'\n"


def words(death: Death, port: int) -> list[str]:
    """The command line of its launcher."""
    script = [*death.options, "script.py"]
    ranks, number = str(death.ranks), str(port)
    match death.launcher:
        case "deepspeed":
            start = ["deepspeed", "--num_gpus", ranks, "--master_port", number]
            return start[:1] + script if death.options else start + script
        case "torchrun":
            return ["torchrun", "--nproc-per-node", ranks, "--master-port", number, *script]
        case "accelerate":
            start = ["accelerate", "launch", "--multi_gpu", "--num_processes", ranks, "--num_machines", "1"]
            return [*start, "--mixed_precision", "no", "--main_process_port", number, *script]
        case "zerokit":
            start = [sys.executable, "-c", "from zerokit.cli.main import main; main()", "train"]
            given = ["--num-gpus", ranks, "--master-port", number, "--recipe", "recipe.yaml"]
            return [*start, *given, *death.options]
    return [sys.executable, *script]


def die(death: Death, folder: Path) -> tuple[int, Path]:
    """Have it die in `folder`; its exit code, and the log of all that it printed."""
    if death.source:
        (folder / "script.py").write_text(death.source, encoding="utf-8")
    (folder / "hostfile").write_text("nowhere.invalid slots=1\n", encoding="utf-8")
    (folder / "data.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 8, encoding="utf-8")
    (folder / "recipe.yaml").write_text(_RECIPE, encoding="utf-8")
    if death.launcher == "zerokit":
        tiny_tokenizer(folder / "model")
        tiny_llama(folder / "model")
    variables = {
        **{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")},
        **{"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        "TORCH_EXTENSIONS_DIR": str(own_folder()),  # which has them, if zerokit was tested here before
        **{"PATH": f"{_BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)},
    }
    log = folder / "log"
    port = free_port()
    with socket.socket() as taken, control_groups(*death.groups) as joins, log.open("wb") as output:
        if death.takes_port:
            taken.bind(("", port))
            taken.listen()
        line = shlex.join([*death.before, *words(death, port)])
        lines = [*joins, *([death.shell] if death.shell else []), f"{line}; exit $?"]
        # The shell is the first process of the namespace: when it ends, all end.
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        process = subprocess.Popen(
            [*(alone if death.is_alone else []), "bash", "-c", "\n".join(lines)],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if death.strikes is not None:
                _strike(death, process, log)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_MOST_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    return code, log


def _strike(death: Death, process: subprocess.Popen[bytes], log: Path) -> None:
    """Send the signal when the ranks are in the middle of it."""
    before = -1.0
    for _ in range(_MOST_LOOKS):
        if process.poll() is not None:
            return
        if death.ready is not None:
            said = re.findall(death.ready, log.read_text(encoding="utf-8", errors="replace"))
            is_time = len(said) >= death.often
            time.sleep(0.1)
        else:
            time.sleep(10)
            used = sum(stat.cpu_seconds for pid in _family(process.pid) if (stat := stat_of(pid)) is not None)
            is_time, before = 0 <= used - before < 0.5, used
        if is_time:
            (shell,) = children_of(process.pid)
            rank = death.struck.removeprefix("rank ")
            target = children_of(shell)[0] if death.struck == "launcher" else _rank(rank, process.pid)
            os.kill(target, death.strikes or 0)
            return


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        found += children_of(parent)
    return found


def _rank(number: str, pid: int) -> int:
    for one in _family(pid):
        if variables_of(one).get("RANK") == number:
            return one
    raise ProcessLookupError(f"there is no rank {number}")


def row(death: Death, keep: Path | None = None) -> dict[str, Any]:
    """What comes of it; its log is kept in the folder `keep`."""
    with tempfile.TemporaryDirectory() as folder:
        code, log = die(death, Path(folder))
        found = explain_log(read_log(str(log)))
        if keep is not None:
            shutil.copyfile(log, keep / f"{death.name}, {death.launcher}.log".replace("/", "_"))
        said = (found.message, found.fix or "", found.text or "")
        for place in (folder, str(REPOSITORY), str(_PACKAGES)):
            said = tuple(word.replace(place, "...") for word in said)
        message, fix, line = said
    is_right = (
        re.fullmatch(death.cause, found.cause) is not None
        and re.search(death.message, f"{message}. {fix}") is not None
    )
    return {
        "death": death.name,
        "launcher": death.launcher,
        "exit_code": code,
        "cause": found.cause,
        "message": message,
        "fix": fix,
        "line": line,
        "right": is_right,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The page's."""
    lines = ["| what was done | started by | exit code | what is said |", "|---|---|---:|---|"]
    for one in rows:
        message = one["message"].replace("|", "\\|")
        lines.append(f"| {one['death']} | `{one['launcher']}` | {one['exit_code']} | {message} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORDS", help="only rows that have them")
    parser.add_argument("--write", action="store_true", help="rewrite the table; rows not tried again stay")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the logs there")
    given = parser.parse_args()
    rows = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else []
    known = {(one["death"], one["launcher"]): one for one in rows}
    for death in DEATHS:
        key = (death.name, death.launcher)
        if not any(words in ", ".join(key) for words in given.only):
            continue
        made = known[key] = row(death, given.keep)
        verdict = "right" if made["right"] else f"WRONG, not {death.cause}"
        print(f"{', '.join(key)}, {made['exit_code']}: {made['cause']}: {made['message']}: {verdict}", flush=True)
        if given.write:
            rows = [known[one.name, one.launcher] for one in DEATHS if (one.name, one.launcher) in known]
            WRITTEN.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if given.write:
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(rows) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
