"""Compare the estimate of generation with rehearsals of ``zerokit generate``, for models drawn at random.

    python -m tests.validation.generation.memory [--count N] [--seed S] [--time]

Each rehearsal takes about half a minute. Peaks and tokens per second go to
results/generation_memory.json as they come, under the seed; a new start rehearses only what is missing, and makes all
estimates anew. The formulas were corrected with the runs of seed 1. The runs of :data:`HELD_OUT` were chosen before
any of them was rehearsed; the record keeps the estimate that each had then as ``first_estimate``: its errors count.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, tiny_tokenizer
from zerokit.generation.options import Options
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.memory.generation import GenerationRun, generation_memory
from zerokit.models import load_model_shape
from zerokit.step_time.generation import generation_time

RECORD = REPOSITORY / "tests" / "validation" / "results" / "generation_memory.json"
MODES = ("replicated", "sharded", "offloaded")
HELD_OUT = (31, 4711)
"""Seeds of the runs that no formula was corrected with: of peaks, and of speeds."""
GPU = "h100"
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"]},
    "mistral": {"architectures": ["MistralForCausalLM"], "sliding_window": None},
    "opt": {"architectures": ["OPTForCausalLM"]},
}


def drawn(seed: int, number: int) -> dict[str, Any]:
    """A run, with the config.json of its model."""
    choose = random.Random(f"{seed}-{number}")
    family = choose.choice([*FAMILIES])
    head, heads = choose.choice([64, 128]), choose.choice([16, 24, 32])
    config = FAMILIES[family] | {
        "model_type": family,
        "hidden_size": head * heads,
        "num_attention_heads": heads,
        "num_hidden_layers": choose.randint(4, 12),
        "vocab_size": choose.choice([32000, 50272, 128256]),
        "max_position_embeddings": 8192,
        "tie_word_embeddings": family == "opt",
        "dtype": "bfloat16",
    }
    if family == "opt":
        config |= {"ffn_dim": 4 * head * heads, "word_embed_proj_dim": head * heads, "do_layer_norm_before": True}
    else:
        keys = choose.choice([one for one in (2, 8, heads) if heads % one == 0])
        config |= {
            "intermediate_size": choose.choice([3, 4]) * head * heads,
            "num_key_value_heads": keys,
            "head_dim": head,
        }
    mode = MODES[number % len(MODES)]
    return {
        "config": config,
        "mode": mode,
        "num_gpus": choose.choice([1, 2]) if mode == "offloaded" else choose.choice([1, 2, 4][mode == "sharded" :]),
        "batch_size": choose.choice([2, 8, 32, 64]),
        "prompt_tokens": choose.choice([64, 512, 1024]),
        "new_tokens": choose.choice([4, 16]),
    }


def rehearsed(run: dict[str, Any], *, timed: bool) -> dict[str, Any]:
    """The peak of a rehearsal; of a timed one only the speed, as memory then depends on when streams free blocks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps(run["config"]), encoding="utf-8")
        long, short = (" ".join(map(str, range(words))) for words in (run["prompt_tokens"], run["prompt_tokens"] // 8))
        # Two batches: DeepSpeed prefetches from its second pass on. Independent ranks get padding, and so a mask.
        count, is_mixed = run["batch_size"] * run["num_gpus"], run["mode"] == "replicated"
        texts = [long] * (count // 2) + [short] * (count - count // 2 + count) if is_mixed else [long] * 2 * count
        lines = [json.dumps({"prompt": text}) for text in texts]
        (folder / "p.jsonl").write_text("\n".join(lines), encoding="utf-8")
        words = [
            "-m",
            "zerokit.generate",
            "--model",
            name,
            "--prompts",
            str(folder / "p.jsonl"),
            "--mode",
            run["mode"],
        ]
        words += ["--batch-size", str(run["batch_size"]), "--max-prompt-tokens", str(run["prompt_tokens"])]
        words += ["--max-new-tokens", str(run["new_tokens"]), "--dtype", "bfloat16", "-o", str(folder / "out.jsonl")]
        # Made-up choices take the tokens in turn, so they do not reach the last one: no completion ends early.
        words += ["--eos_token_id", str(run["config"]["vocab_size"] - 1)]
        own = [
            *(["--time"] if timed else []),
            "--num-gpus",
            str(run["num_gpus"]),
            "--gpu",
            GPU,
            "-o",
            str(folder / "r.json"),
            "--no-advise",
        ]
        command = [sys.executable, "-m", "zerokit", "rehearse", *own, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=name, check=False)
        speed = re.findall(r"([\d.,]+) tokens/s", done.stderr + done.stdout)
        if not (folder / "r.json").is_file():
            raise SystemExit(done.stdout[-2000:] + done.stderr[-3000:])
        report = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    if timed:
        return {"tokens_per_second": float(speed[-1].replace(",", ""))}
    return {"peak_bytes": report["device"]["peak_bytes"]}


def estimated(run: dict[str, Any]) -> dict[str, Any]:
    """The same by formulas."""
    cluster = Cluster(run["num_gpus"], 8, find_gpu(GPU))
    sizes = {name: run[name] for name in ("mode", "batch_size", "prompt_tokens", "new_tokens")}
    if run["mode"] == "offloaded" and run["batch_size"] == Options.batch_size:
        sizes["batch_size"] *= 2  # the default: one pass serves all sequences of a rank
    given = GenerationRun(model=load_model_shape(run["config"]), cluster=cluster, **sizes)
    time = generation_time(given, CardCosts(cluster))
    return {"peak_bytes": generation_memory(given).peak, "tokens_per_second": round(time.tokens_per_second, 1)}


def summarized(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Median and largest error of estimates and rehearsals."""
    summary: dict[str, Any] = {}
    for key in ("peak_bytes", "tokens_per_second"):
        errors = [abs(made[key] / found[key] - 1) for made, found in pairs if found.get(key)]
        if errors:
            errors_of = {"median": round(statistics.median(errors), 4), "worst": round(max(errors), 4)}
            summary[key] = {"count": len(errors), **errors_of}
    return summary


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="rehearse the speed, too")
    options = parser.parse_args()
    old = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"points": {}}
    points: dict[str, Any] = old["points"]
    for number in range(options.count):
        name, run = f"{options.seed}-{number}", drawn(options.seed, number)
        if name not in points or points[name]["run"] != run:
            points[name] = {"run": run, "rehearsed": rehearsed(run, timed=False)}
        if options.time and "tokens_per_second" not in points[name]["rehearsed"]:
            points[name]["rehearsed"] |= rehearsed(run, timed=True)
        points[name]["estimated"] = estimated(run)
        points[name].setdefault("first_estimate", points[name]["estimated"])
        held_out = {key: one for key, one in points.items() if int(key.split("-")[0]) in HELD_OUT}
        tuned = [(one["estimated"], one["rehearsed"]) for key, one in points.items() if key not in held_out]
        fresh = [(one["first_estimate"], one["rehearsed"]) for one in held_out.values()]
        summary = {"summary": summarized(tuned), "held_out": summarized(fresh)}
        RECORD.write_text(json.dumps({**summary, "points": points}, indent=1) + "\n", encoding="utf-8")
        sizes = [run[key] for key in ("mode", "num_gpus", "batch_size", "prompt_tokens", "new_tokens")]
        print(
            name, run["config"]["model_type"], *sizes, points[name]["rehearsed"], points[name]["estimated"], flush=True
        )
    print(summary)


if __name__ == "__main__":
    main()
