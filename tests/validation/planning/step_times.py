"""The closed form of a step's time, compared with full rehearsals of random configurations.

    python -m tests.validation.planning.step_times --seed 2 --count 30

Each configuration is drawn from the seed and its number. It is rehearsed once: the record in
`tests/validation/results/plan_step_times.json` keeps the times, and a later call goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.rehearsal import commands
from tests.validation.memory.rehearsed import STEPS, Point
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.memory.training_run import TrainingRun
from zerokit.models import catalogue, load_model_shape
from zerokit.step_time import step_time

RECORD = Path(__file__).parents[1] / "results" / "plan_step_times.json"
_OFTEN = (
    *("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.1-70B", "huggyllama/llama-13b"),
    *("Qwen/Qwen2-0.5B", "Qwen/Qwen2-7B", "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"),
    *("mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3", "google/gemma-2b", "google/gemma-7b"),
    *("google/gemma-2-2b", "google/gemma-2-9b", "microsoft/phi-2", "microsoft/Phi-3-mini-4k-instruct"),
    *("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen1.5-MoE-A2.7B"),
)
_SELDOM = (
    *("openai-community/gpt2", "facebook/opt-1.3b", "facebook/opt-2.7b", "bigscience/bloom-1b7", "t5-base"),
    *("google-t5/t5-large", "google-bert/bert-large-uncased", "google-bert/bert-base-uncased"),
)
_CARDS = (
    *("V100-32GB", "A100-40GB-SXM", "A100-80GB-SXM", "A100-80GB-PCIe", "H100-SXM", "H100-SXM", "H200", "B200"),
    *("RTX 4090", "L40S", "A10G"),
)
_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_WITH_LLAMA_NAMES = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2")
_MOST_LAYERS = 12


def draw(seed: int, number: int) -> dict[str, Any]:
    """A configuration: the arguments of a `Point`, the card, and the network between nodes."""
    rng = random.Random(f"{seed}-{number}")
    names = [one for one in (_OFTEN if rng.random() < 0.8 else _SELDOM) if catalogue.find(one) is not None]
    model = rng.choice(names)
    known = catalogue.find(model)
    assert known is not None
    shape = load_model_shape(known.config)
    card = rng.choice(_CARDS)
    nodes = rng.choice((1, 1, 1, 1, 2, 4, 8))
    local = 8 if nodes > 1 else rng.choice((1, 2, 4, 8, 8))
    stage = rng.choice((0, 1, 2, 2, 2, 3, 3, 3, 3))
    zero: dict[str, Any] = {"stage": stage}
    hidden = shape.hidden_size or 1
    if rng.random() < 0.6 and stage:  # as the Trainer fills "auto"
        zero["reduce_bucket_size"] = hidden * hidden
        if stage == 3:
            zero["stage3_prefetch_bucket_size"] = int(0.9 * hidden * hidden)
            zero["stage3_param_persistence_threshold"] = 10 * hidden
    if stage in (1, 2) and rng.random() < 0.3:
        zero["overlap_comm"] = True
    if stage and rng.random() < 0.3:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": rng.random() < 0.5}
        if stage == 3 and rng.random() < 0.5:
            zero["offload_param"] = {"device": "cpu", "pin_memory": rng.random() < 0.5}
    seq_len = rng.choice((512, 1024, 2048, 2048, 4096, 8192, 16384))
    longest = shape.max_position_embeddings or seq_len
    seq_len = min(seq_len, longest, 512 if shape.is_encoder_decoder else seq_len)
    micro = rng.choice((1, 1, 2, 4, 8, 16))
    while micro > 1 and micro * seq_len > 32768:
        micro //= 2
    use_lora = shape.model_type in _WITH_LLAMA_NAMES and rng.random() < 0.25
    layers = shape.num_hidden_layers or 1
    changes: dict[str, int] = {}
    if layers > _MOST_LAYERS and rng.random() < 0.85:
        changes = {"num_hidden_layers": _MOST_LAYERS}
    if shape.is_encoder_decoder:
        changes |= {"decoder_start_token_id": 0, "pad_token_id": 0}
    eager = not shape.has_sdpa
    return {
        "point": {
            "model": model,
            "zero": zero,
            "num_gpus": nodes * local,
            "micro_batch_size": micro,
            "seq_len": seq_len,
            "precision": "fp16" if card.startswith("V100") else "bf16",
            "accumulation": rng.choice((1, 1, 1, 2, 4)),
            "checkpointing": rng.random() < 0.5,
            "attention": "eager" if eager else "sdpa",
            "lora": {"rank": 16, "target_modules": _LINEAR} if use_lora else None,
            "changes": changes,
            "extra": {"gradient_accumulation_steps": 1},
        },
        "card": card,
        "network_gbit_s": rng.choice((100, 200, 400, 1600, 3200)) if nodes > 1 else None,
    }


def _point(drawn: dict[str, Any]) -> Point:
    arguments = dict(drawn["point"])
    arguments["extra"] = {"gradient_accumulation_steps": arguments["accumulation"]}
    return Point("drawn", **arguments)


def rehearse(drawn: dict[str, Any], point: Point | None = None) -> dict[str, Any]:
    """The time of the last step, as the rehearsal reports it."""
    point = point or _point(drawn)
    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder) / "point.json"
        description.write_text(json.dumps(point.description()), encoding="utf-8")
        words: list[object] = ["--time", "--no-advise", "--num-gpus", point.num_gpus, "--gpu", drawn["card"]]
        if drawn["network_gbit_s"]:
            words += ["--network", drawn["network_gbit_s"]]
        words += ["--gpu-memory", "2000GiB", "--host-memory", "20TiB", "--format", "json", "--steps", STEPS]
        done = commands.rehearse(*words, point.script, description, cwd=Path(folder), forked=True)
    if done.code not in (0, 1):
        return {"error": done.err[-600:]}
    found = json.loads(done.out)["time"]
    return {
        key: found.get(key) for key in ("step_seconds", "low_seconds", "high_seconds", "breakdown", "host_threads")
    }


def launch_share(real: dict[str, Any]) -> float:
    """Share of a rehearsed step in which the GPU waits for the host's launches."""
    return float(real["breakdown"]["launch"] / real["step_seconds"]) if "breakdown" in real else 0.0


def predict(drawn: dict[str, Any], host_threads: int | None, point: Point | None = None) -> Any:
    """The closed form of the same run."""
    point = point or _point(drawn)
    cluster = Cluster(point.num_gpus, 8, find_gpu(drawn["card"]), network_gbit_s=drawn["network_gbit_s"])
    run: TrainingRun = point.training_run()
    return step_time(run, CardCosts(cluster), host_threads=host_threads)


def main() -> None:
    """Rehearse what is missing, and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--again", type=float, metavar="SHARE", help="also where launches take more of the step")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no rehearsal after so many")
    options = parser.parse_args()
    start = time.monotonic()
    record: dict[str, Any] = json.loads(options.record.read_text()) if options.record.is_file() else {}
    rows = record.setdefault(f"seed {options.seed}", {})
    for number in range(options.first, options.count):
        drawn = draw(options.seed, number)
        row = rows.get(str(number))
        is_new = row is None or row["drawn"] != drawn
        if is_new:
            if time.monotonic() - start > options.seconds:
                continue
            rows[str(number)] = {"drawn": drawn, "rehearsed": rehearse(drawn)}
        row = rows[str(number)]
        if options.again is not None and launch_share(row["rehearsed"]) > options.again:
            row["rehearsed"] = rehearse(drawn)
        if "error" in row["rehearsed"]:
            print(number, "refused:", row["rehearsed"]["error"][-200:].replace("\n", " "))
            continue
        real = row["rehearsed"]
        predicted = predict(drawn, real["host_threads"])
        row["predicted"] = {"seconds": predicted.seconds, "low_seconds": predicted.low_seconds}
        row["predicted"] |= {"high_seconds": predicted.high_seconds, "parts": predicted.parts}
        row["error"] = predicted.seconds / real["step_seconds"] - 1
        if is_new:
            row["blind_error"] = row["error"]
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(number, f"{row['error']:+.1%}", f"{real['step_seconds']:.3f}", _words(drawn), flush=True)
        print("     ", _parts(real["breakdown"]), "|", _parts(predicted.parts), flush=True)
    errors = [abs(row["error"]) for row in rows.values() if "error" in row]
    if errors:
        print(f"{len(errors)} configurations: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")


def _parts(parts: dict[str, float]) -> str:
    return " ".join(f"{name[:9]}={value * 1e3:.1f}" for name, value in parts.items() if value > 1e-4)


def _words(drawn: dict[str, Any]) -> str:
    point = drawn["point"]
    zero = json.dumps(point["zero"]).replace('"', "")
    lora = "lora " if point["lora"] else ""
    layers = point["changes"].get("num_hidden_layers", "all")
    checkpointing = "ckpt " if point["checkpointing"] else ""
    return (
        f"{point['model'].split('/')[-1]} x{layers} {drawn['card']} {point['num_gpus']} {zero} "
        f"mbs {point['micro_batch_size']} s {point['seq_len']} acc {point['accumulation']} "
        f"{checkpointing}{lora}{drawn['network_gbit_s'] or ''}"
    )


if __name__ == "__main__":
    main()
