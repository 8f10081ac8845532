"""What ``zerokit generate`` survives: ``python -m tests.validation.generation.torture [--write]``.

On 2 and 3 ranks: one prompt; prompts of 1 to 2,000 tokens; a rank that is ten times slower; completions that end
at once; a bad prompt in the middle; 10,000 prompts from stdin. Then a run is killed (SIGKILL) at ten random
moments and continued on 1 to 3 ranks. Greedy completions are compared with transformers on one process.

``--faults`` runs only these on 2 ranks, in each mode: an output that exists, a truncated shard, pickles, and a full
disk; it mounts one, as root. Then a rank is killed. The last two runs are continued on another number of ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tiny import launch as forked
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
MODES = ("replicated", "sharded", "tensor", "offloaded")
DISK = "size=12k"
"""Three pages of a file system in memory: fewer than the results take."""

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
    parser.add_argument("--faults", nargs="*", metavar="MODE", choices=MODES, help="only faults, in these modes")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    if given.faults is not None:
        with tempfile.TemporaryDirectory() as name:
            make_inputs(Path(name), draw, 1, compared=("many",))
            found_faults = {mode: faults(Path(name), draw, mode) for mode in given.faults or MODES}
        if given.write:
            whole = json.loads(RECORD.read_text(encoding="utf-8"))
            write(whole | {"faults": whole.get("faults", {}) | found_faults})
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, draw, given.streamed)
        found: dict[str, Any] = {"seed": given.seed, "cases": [], "kills": []}
        for ranks in given.ranks:
            found["cases"] += run_cases(folder, ranks, given.streamed)
        if given.kills:
            found["kills"] = kill_and_resume(folder, draw, given.kills)
    if given.write:
        write(json.loads(RECORD.read_text(encoding="utf-8")) | found)


def write(found: Mapping[str, Any]) -> None:
    """Write the record, a line for each run."""
    rows = {name: [f"  {json.dumps(row)}" for row in found[name]] for name in ("cases", "kills")}
    parts = [f' "{name}": [\n' + ",\n".join(lines) + "\n ]" for name, lines in rows.items()]
    of_faults = [f'  "{mode}": {json.dumps(row)}' for mode, row in found.get("faults", {}).items()]
    parts.append(' "faults": {\n' + ",\n".join(of_faults) + "\n }")
    text = "{\n" + ",\n".join([f' "seed": {found["seed"]}', *parts]) + "\n}\n"
    RECORD.write_text(text, encoding="utf-8")


def make_inputs(
    folder: Path, draw: random.Random, streamed: int, compared: Sequence[str] = ("one", "lengths", "many")
) -> None:
    """A model, files of prompts, and what transformers makes of those that are compared."""
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
    expected = {name: reference(folder / "model", texts[name]) for name in compared}
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


def words(prompts: str, out: str, *more: str, new_tokens: int = NEW_TOKENS, model: str = "model") -> list[str]:
    return [
        *("--model", model, "--prompts", prompts, "-o", out, "--max_new_tokens", f"{new_tokens}"),
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


def faults(folder: Path, draw: random.Random, mode: str) -> dict[str, Any]:
    """What each fault leads to in a mode: exit code and message of both ranks, and what is left."""
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["many"]
    place = folder / mode
    place.mkdir()
    for name in ("model", "many.jsonl"):
        (place / name).symlink_to(folder / name)
    (place / "exists.jsonl").write_text("mine", encoding="utf-8")
    broken_models(folder / "model", place)
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", disk], check=True)
    try:
        cases = {
            "exists": words("many.jsonl", "exists.jsonl"),
            **{name: words("many.jsonl", "out.jsonl", model=name) for name in ("truncated", "pickle", "disguised")},
            "full": words("many.jsonl", "disk/out.jsonl"),
        }
        found: dict[str, Any] = dict(run_faults(place, cases, mode, 2))
        found["exists, left"] = (place / "exists.jsonl").read_text(encoding="utf-8")
        found["executed"] = (place / "executed").exists()
        found["full, kept"] = count_lines(disk / "out.jsonl.partial") - 1
        subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
        again = {"full, continued": words("many.jsonl", "disk/out.jsonl", "--resume")}
        found |= dict(run_faults(place, again, "replicated", 3))
        found["full, equal"] = [record["completion"] for record in read_records(disk / "out.jsonl")] == expected
    finally:
        subprocess.run(["umount", disk], check=True)
    found |= kill_once(folder, draw, mode)
    print(json.dumps({mode: found}), file=sys.stderr, flush=True)
    return found


def run_faults(
    place: Path, cases: Mapping[str, list[str]], mode: str, ranks: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The result of each case, by one launch."""
    jobs = [
        {"name": name, "words": [*line, "--mode", mode], "slower": 0, "slow_rank": 0} for name, line in cases.items()
    ]
    (place / "cases.json").write_text(json.dumps(jobs), encoding="utf-8")
    (place / "ranks.py").write_text(RANK_SCRIPT, encoding="utf-8")
    run = forked(["ranks.py"], ranks=ranks, launcher="none", cwd=place)
    lines = [json.loads(line.removeprefix("DONE ")) for line in run.stdout.splitlines() if line.startswith("DONE ")]
    if len(lines) != len(cases):
        raise SystemExit(f"{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    for line in lines:
        yield line["name"], {"code": line["code"], "same": line["same"], "prompts_of_ranks": line["prompts_of_ranks"]}


def broken_models(model: Path, place: Path) -> None:
    """Models beside `model`: of a truncated shard, of a pickle, and of a pickle with the name of safetensors."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model)
    code = f"cos\nsystem\n(S'touch {place / 'executed'}'\ntR."
    for name in ("truncated", "pickle", "disguised"):
        shutil.copytree(model, place / name, ignore=shutil.ignore_patterns("*.safetensors"))
        if name == "truncated":
            loaded.save_pretrained(place / name, max_shard_size="100KB")
            shard = max(place.glob("truncated/*-of-*.safetensors"))
            os.truncate(shard, shard.stat().st_size // 2)
        else:
            file = "pytorch_model.bin" if name == "pickle" else "model.safetensors"
            (place / name / file).write_text(code, encoding="ascii")


def kill_once(folder: Path, draw: random.Random, mode: str) -> dict[str, Any]:
    """Kill a rank of two (SIGKILL), and continue on one or three."""
    (folder / "command.py").write_text(COMMAND, encoding="utf-8")
    partial, out = folder / f"{mode}.jsonl.partial", f"{mode}.jsonl"
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))["many"]
    run = launch(folder, "command.py", [*words("many.jsonl", out), "--batch-size", "1", "--mode", mode], 2)
    while count_lines(partial) <= 4 and run.poll() is None:
        time.sleep(0.01)
    victim, ranks = draw.randrange(2), draw.choice([1, 3])
    os.kill(children(run.pid)[victim], signal.SIGKILL)
    output, _ = run.communicate()
    killed = {"rank": victim, "code": run.returncode, "kept": count_lines(partial) - 1, "ranks": ranks}
    run = launch(folder, "command.py", words("many.jsonl", out, "--resume"), ranks)
    output, _ = run.communicate()
    if run.returncode:
        raise SystemExit(output[-4000:])
    return {"killed": killed | {"equal": [line["completion"] for line in read_records(folder / out)] == expected}}


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
