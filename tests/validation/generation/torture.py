"""What ``zerokit generate`` survives: ``python -m tests.validation.generation.torture [--write]``.

On 2 and 3 ranks: one prompt; prompts of 1 to 2,000 tokens; a rank that is ten times slower; completions that end
at once; a bad prompt in the middle; 10,000 prompts from stdin. Then a run is killed (SIGKILL) at ten random
moments and continued on 1 to 3 ranks. Greedy completions are compared with transformers on one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tiny import tiny_llama, tiny_tokenizer
from zerokit.distributed.ranks import free_port

RECORD = Path(__file__).parent.parent / "results" / "generation_torture.json"
NEW_TOKENS = 12
NUM_STREAMED = 10_000
NUM_KILLS = 10
SLOW_RANK, SLOWER = 1, 10
LIMIT = 1500.0
"""Seconds after which a launch counts as a hang."""
MOST_TOKENS = 2_000

RANK_SCRIPT = """
import json, os, resource, sys, time
from pathlib import Path
from unittest import mock
os.cpu_count = lambda: 8  # more ranks than this machine has cores
import torch
from zerokit.cli.main import command_line
from zerokit.distributed.group import leave, run_on_all_ranks
from zerokit.errors import ZerokitError
import zerokit.generation.main as generation

sent = []
send = generation.send
generation.send = lambda store, message: (sent.append(message), send(store, message))
slow = []
started = []

def before(module, arguments):
    if hasattr(module, "generation_config"):
        started.append(time.monotonic())

def after(module, arguments, output):
    if hasattr(module, "generation_config") and slow:
        time.sleep((slow[0] - 1) * (time.monotonic() - started[-1]))

torch.nn.modules.module.register_module_forward_pre_hook(before)
torch.nn.modules.module.register_module_forward_hook(after)

def options_of(words):
    with mock.patch("zerokit.distributed.group.leave"), mock.patch("zerokit.generation.main.main") as run:
        command_line()(["generate", *words], standalone_mode=False)
    return run.call_args.args[0]

def main(group):
    for case in json.loads(Path("cases.json").read_text()):
        sent.clear()
        slow[:] = [case["slower"]] if case["slower"] and group.ranks.rank == case["slow_rank"] else []
        begun = time.monotonic()
        try:
            code = int(generation.generate(group, options_of(case["words"]), sys.stdout) > 0)
        except ZerokitError as error:
            code = f"{error.exit_code} {error}"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        mine = (len(sent) - 1, code, peak)
        everyone = group.gather_objects(mine)
        if group.ranks.is_main:
            prompts, codes, peaks = zip(*everyone)
            done = {"name": case["name"], "code": codes[0], "same": len({*codes}) == 1, "prompts_of_ranks": prompts,
                    "seconds": round(time.monotonic() - begun, 1), "peak_mib": peaks}
            print("DONE", json.dumps(done), flush=True)

leave(run_on_all_ranks(main))
"""

COMMAND = """
import os
os.cpu_count = lambda: 8
from zerokit.cli.main import main
main("generate")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streamed", type=int, default=NUM_STREAMED)
    parser.add_argument("--kills", type=int, default=NUM_KILLS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3])
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, draw, given.streamed)
        found: dict[str, Any] = {"seed": given.seed, "cases": [], "kills": []}
        for ranks in given.ranks:
            found["cases"] += run_cases(folder, ranks, given.streamed)
        if given.kills:
            found["kills"] = kill_and_resume(folder, draw, given.kills)
    rows = {name: [f"  {json.dumps(row)}" for row in found[name]] for name in ("cases", "kills")}
    parts = [f' "{name}": [\n' + ",\n".join(lines) + "\n ]" for name, lines in rows.items()]
    text = "{\n" + ",\n".join([f' "seed": {given.seed}', *parts]) + "\n}\n"
    if given.write:
        RECORD.write_text(text, encoding="utf-8")


def make_inputs(folder: Path, draw: random.Random, streamed: int) -> None:
    """A model, files of prompts, and what transformers makes of them."""
    (folder / "model").mkdir()
    tokenizer = tiny_tokenizer(folder / "model")
    tiny_llama(folder / "model", max_position_embeddings=MOST_TOKENS + NEW_TOKENS)
    text = "".join(chr(draw.randint(97, 122)) for _ in range(2 * MOST_TOKENS))
    ids = tokenizer(text)["input_ids"]
    lengths = [1, MOST_TOKENS, *(int(MOST_TOKENS ** draw.random()) for _ in range(30))]
    texts = {
        "one": ["The for statement"],
        "lengths": [tokenizer.decode(ids[-length:]) for length in lengths],
        "many": [f"{number} and {draw.random()}" for number in range(48)],
        "streamed": [f"count {number}" for number in range(streamed)],
    }
    for name, prompts in texts.items():
        rows = [json.dumps({"prompt": prompt}) for prompt in prompts]
        if name == "many":
            rows.insert(20, json.dumps({"prompt": ""}))
            (folder / "bad.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
            rows.pop(20)
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    expected = {name: reference(folder / "model", texts[name]) for name in ("one", "lengths", "many")}
    end = expected["many"][0][0]
    expected["ends"] = reference(folder / "model", texts["many"], [0, end])
    (folder / "end").write_text(str(end), encoding="utf-8")
    expected["bad"] = [*expected["many"][:20], [], *expected["many"][20:]]
    (folder / "expected.json").write_text(
        json.dumps(
            {name: tokenizer.batch_decode(found, skip_special_tokens=True) for name, found in expected.items()}
        ),
        encoding="utf-8",
    )


def reference(model: Path, prompts: Sequence[str], ends: Sequence[int] = (0,)) -> list[list[int]]:
    """Greedy tokens of each prompt by plain transformers, without the token that ends them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        mask, options = torch.ones_like(ids), {"do_sample": False, "eos_token_id": list(ends)}
        made = plain.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, **options)
        tokens = made[0, ids.shape[1] :].tolist()
        found.append(tokens[: next((at for at, token in enumerate(tokens) if token in ends), None)])
    return found


def words(prompts: str, out: str, *more: str, new_tokens: int = NEW_TOKENS) -> list[str]:
    return [
        *("--model", "model", "--prompts", prompts, "-o", out, "--max_new_tokens", f"{new_tokens}"),
        *("--do_sample", "false", "--batch-size", "4", *more),
    ]


def run_cases(folder: Path, ranks: int, streamed: int) -> list[dict[str, Any]]:
    """All cases but the kills, in one launch."""
    end = (folder / "end").read_text(encoding="utf-8")
    ends = ("--eos_token_id", f"[0, {end}]")
    cases: dict[str, tuple[str, list[str]]] = {
        "one": ("one", []),
        "lengths": ("lengths", []),
        "slow": ("many", []),
        "ends": ("ends", [*ends]),
        "bad": ("bad", []),
        "streamed": ("streamed", ["--batch-size", "64"]),
        "one, sharded": ("one", ["--mode", "sharded"]),
        "lengths, sharded": ("lengths", ["--mode", "sharded"]),
        "slow, sharded": ("many", ["--mode", "sharded"]),
        "ends, sharded": ("ends", [*ends, "--mode", "sharded"]),
        "bad, sharded": ("bad", ["--mode", "sharded"]),
    }
    job = []
    for number, (name, (key, more)) in enumerate(cases.items()):
        source = "-" if key == "streamed" else f"{'many' if key == 'ends' else key}.jsonl"
        line = words(source, f"out{number}.jsonl", "--force", *more, new_tokens=2 if key == "streamed" else NEW_TOKENS)
        if "--batch-size" in more:
            at = line.index("--batch-size")
            del line[at : at + 2]
        slower = SLOWER if name.startswith("slow") else 0
        job.append({"name": name, "words": line, "slower": slower, "slow_rank": SLOW_RANK})
    (folder / "cases.json").write_text(json.dumps(job), encoding="utf-8")
    (folder / "ranks.py").write_text(RANK_SCRIPT, encoding="utf-8")
    with (folder / "streamed.jsonl").open("rb") as stdin:
        done = launch(folder, "ranks.py", [], ranks, stdin=stdin)
    output, _ = done.communicate()
    results = [json.loads(line.removeprefix("DONE ")) for line in output.splitlines() if line.startswith("DONE ")]
    if len(results) != len(cases):
        raise SystemExit(output[-4000:])
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    for number, (result, (key, _)) in enumerate(zip(results, cases.values(), strict=True)):
        records = read_records(folder / f"out{number}.jsonl")
        size = streamed if key == "streamed" else len(expected[key])
        result["ranks"] = ranks
        result["complete"] = [record["index"] for record in records] == [*range(size)]
        result["failed"] = sum(record["finish_reason"] == "error" for record in records)
        if key != "streamed":
            result["equal"] = [record.get("completion", "") for record in records] == expected[key]
        print(json.dumps(result), file=sys.stderr, flush=True)
    return results


def kill_and_resume(folder: Path, draw: random.Random, kills: int) -> list[dict[str, Any]]:
    """Kill a run at random moments, each time continued on another number of ranks."""
    (folder / "command.py").write_text(COMMAND, encoding="utf-8")
    rows = (folder / "many.jsonl").read_text(encoding="utf-8").splitlines()
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["many"]
    repeats = 12
    (folder / "long.jsonl").write_text("\n".join(rows * repeats) + "\n", encoding="utf-8")
    partial = folder / "kill.jsonl.partial"
    found: list[dict[str, Any]] = []
    for number in range(kills + 1):
        ranks = draw.choice([1, 2, 3])
        run = launch(folder, "command.py", words("long.jsonl", "kill.jsonl", "--resume"), ranks)
        before = count_lines(partial)
        step: dict[str, Any] = {"ranks": ranks, "before": before, "killed": None}
        if number < kills:
            wanted = before + draw.randint(0, len(rows) * repeats // (kills + 2))
            while count_lines(partial) <= wanted and run.poll() is None:
                time.sleep(0.01)
            pids = [run.pid] if ranks == 1 else children(run.pid)
            step["killed"] = draw.choice([f"rank {rank}" for rank in range(len(pids))])
            os.kill(pids[int(step["killed"].removeprefix("rank "))], signal.SIGKILL)
        output, _ = run.communicate()
        step |= {"code": run.returncode, "after": count_lines(partial)}
        if number == kills and run.returncode:
            raise SystemExit(output[-4000:])
        found.append(step)
        print(json.dumps(step), file=sys.stderr, flush=True)
    records = read_records(folder / "kill.jsonl")
    complete = [record["index"] for record in records] == [*range(len(rows) * repeats)]
    equal = [record["completion"] for record in records] == expected * repeats
    return [*found, {"complete": complete, "equal": equal, "left": partial.exists()}]


def launch(folder: Path, script: str, given: Sequence[str], ranks: int, stdin: Any = None) -> subprocess.Popen[str]:
    """Start a script on `ranks` CPU ranks with torchrun, or as one process."""
    repository = Path(__file__).parents[3]
    environment: Mapping[str, str] = {
        **os.environ,
        "PYTHONPATH": str(repository),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, script, *given]
    if ranks > 1 or script == "ranks.py":
        ports = ["--nproc-per-node", f"{ranks}", "--master-port", f"{free_port()}"]
        command = [sys.executable, "-m", "torch.distributed.run", *ports, script, *given]
    return subprocess.Popen(
        ["timeout", f"{LIMIT}", *command] if ranks > 1 else command,
        cwd=folder,
        env=environment,
        stdin=stdin or subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def children(pid: int) -> list[int]:
    """The ranks below a launcher below `timeout`."""
    (launcher,) = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split())
    return [*map(int, Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii").split())]


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def read_records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
