"""Rehearses the time of runs whose throughput others have published, and writes both side by side.

``python -m tests.rehearsal.published_times FILE`` reads rows as `tests.hardware.published_throughput` does,
rehearses each one that says enough with ``--time``, and prints what was predicted and measured, then medians
and 90th percentiles of the error by source. ``--rows 55 219 14-33`` takes some rows, by their places in FILE.
With ``--write`` each goes to docs/measured/published_times.json as soon as it is done; those that are there
already are left out unless ``--again``. ``--show`` prints what is written, and rehearses nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import re
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.hardware.published_throughput import CARDS, Judged, Row, judged
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.tiny import REPOSITORY
from zerokit.hardware.gpus import find_gpu

WRITTEN = REPOSITORY / "docs" / "measured" / "published_times.json"
FAR = 0.25
"""An error beyond which docs/time-accuracy.md has something to say of a row."""
_LONGEST_PLAYED = 2
"""Micro-batches of a step that are rehearsed one by one where all are alike."""


@dataclass(frozen=True)
class Plan:
    """A run as `scripts/published_model.py` makes it."""

    model: dict[str, Any]
    """Its config.json."""
    engine: Literal["deepspeed", "fsdp", "torch"]
    length: int
    """Tokens of a sequence."""
    micro_batch: int
    accumulated: list[int]
    """Micro-batches of each step."""
    attention: Literal["flash", "efficient", "eager"]
    checkpointing: Literal["none", "full", "products"] = "none"
    ds_config: dict[str, Any] = field(default_factory=dict)
    stage: int = 3
    """Of FSDP: 2 keeps the parameters gathered until backward."""
    reduced_in: Literal["float32", "bfloat16"] = "float32"
    """What FSDP reduces gradients in."""
    lora_rank: int = 0
    """0: all weights are trained."""
    compiled: bool = False
    """torch.compile of each layer."""


@dataclass(frozen=True)
class Machines:
    """The machines of a row."""

    card: str
    """By its name in the catalogue."""
    gpus: int
    gpus_per_node: int = 8
    network_gbit_s: float | None = None
    """None: as the catalogue says; likewise:"""
    bandwidth_gb_s: float | None = None
    """Of the card's memory."""


@dataclass(frozen=True)
class Run:
    """How a row is rehearsed."""

    plan: Plan
    machines: Machines
    accumulation: int
    """Micro-batches of a step in the row."""
    assumed: tuple[str, ...]


# ---- models


def _mpt(length: int, layers: int, width: int, heads: int) -> dict[str, Any]:
    return _gpt2(length, layers, width, heads, vocabulary=50368)


def _gpt2(length: int, layers: int, width: int, heads: int, vocabulary: int = 50257) -> dict[str, Any]:
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocabulary}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return {
        "model_type": "gpt2",
        **sizes,
        **dropout,
        "n_positions": length,
        "activation_function": "gelu",
    }


def _llama(kind: str, layers: int, width: int, heads: int, inner: int, vocabulary: int, **more: Any) -> Any:
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return {
        "model_type": kind,
        **sizes,
        "num_key_value_heads": heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2**17,
        "tie_word_embeddings": False,
        **more,
    }


_MPT = {  # llm-foundry's yamls: layers, d_model, n_heads
    "125m": (12, 768, 12),
    "350m": (24, 1024, 16),
    "760m": (24, 1536, 12),
    "1b": (24, 2048, 16),
    "3b": (32, 2560, 20),
    "7b": (32, 4096, 32),
    "13b": (40, 5120, 40),
    "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}
_MODELS: Mapping[str, dict[str, Any]] = {
    "Qwen-1.8B": _llama("qwen2", 24, 2048, 16, 5504, 151936),
    "Qwen-7B": _llama("qwen2", 32, 4096, 32, 11008, 151936),
    "Qwen-14B": _llama("qwen2", 40, 5120, 40, 13696, 152064),
    "Qwen-72B": _llama("qwen2", 80, 8192, 64, 24576, 152064),
    "Qwen2.5-14B": _llama("qwen2", 48, 5120, 40, 13824, 152064, num_key_value_heads=8),
    "Qwen3-30B-A3B": _llama(
        *("qwen3_moe", 48, 2048, 32, 6144, 151936),
        num_key_value_heads=4,
        head_dim=128,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
    ),
    "Llama-3.1-8B": _llama("llama", 32, 4096, 32, 14336, 128256, num_key_value_heads=8),
    "InternLM-7B": _llama("llama", 32, 4096, 32, 11008, 103168, attention_bias=True),
}


def _model(row: Row) -> dict[str, Any] | None:
    name, length = row["model"], row["seq_len"]
    if name.startswith("MPT-"):
        return _mpt(length, *_MPT[name.removeprefix("MPT-")])
    if name == "GPT-2 52B":
        return _gpt2(length, 64, 8192, 32)  # MSIZE=52 of bigscience's hf_ds_gpt2_perf_n16.slurm
    if name == "6.86B":
        return _gpt2(length, 32, 4096, 32) | {"tie_word_embeddings": False}
    return _MODELS.get(name)


# ---- runs


def run_of(row: Row) -> Run | None:
    """How a row that says enough is rehearsed; None if its model's sizes are not known here."""
    model = _model(row)
    if model is None:
        return None
    source = str(row["source"])
    for word, make in _BY_SOURCE.items():
        if word in source:
            return make(row, model)
    return None


def _machines(row: Row, **more: Any) -> Machines:
    name = str(row["gpu"])
    return Machines(CARDS.get(name, name.partition(" ")[0].replace("-96", "")), row["n_gpus"], **more)


def _accumulation(row: Row) -> int:
    if row.get("global_batch"):
        return int(row["global_batch"]) // (int(row["micro_batch"]) * int(row["n_gpus"]))
    told = re.search(r"\bga=(\d+)", str(row.get("note") or ""))
    return int(row.get("ga") or (told[1] if told else 1))


def _zero(stage: int, width: int, **section: Any) -> dict[str, Any]:
    """transformers' way of filling "auto" in stage 3."""
    sizes = {
        "reduce_bucket_size": width**2,
        "stage3_prefetch_bucket_size": int(0.9 * width**2),
        "stage3_param_persistence_threshold": 10 * width,
    }
    return {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        **(sizes if stage == 3 else {}),
        **section,
    }


def _run(
    row: Row,
    model: dict[str, Any],
    engine: Literal["deepspeed", "fsdp", "torch"],
    assumed: Sequence[str],
    machines: Machines | None = None,
    **plan: Any,
) -> Run:
    accumulation = _accumulation(row)
    # ZeRO-3 prefetches as it will from the third step on.
    # DeepSpeed takes a step of two at even micro-batches.
    alone = [1] * (4 if engine == "deepspeed" else 2)
    steps = [*alone, 2] if accumulation > _LONGEST_PLAYED else [accumulation] * 3
    made = Plan(model, engine, row["seq_len"], row["micro_batch"], steps, **plan)
    return Run(made, machines or _machines(row), accumulation, tuple(assumed))


def _by_deepspeed(
    row: Row,
    model: dict[str, Any],
    stage: int,
    assumed: Sequence[str],
    *,
    precision: str = "bf16",
    **plan: Any,
) -> Run:
    config = {
        "train_micro_batch_size_per_gpu": row["micro_batch"],
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
        precision: {"enabled": True},
        "zero_optimization": _zero(stage, model.get("hidden_size") or model["n_embd"]),
    }
    return _run(row, model, "deepspeed", assumed, ds_config=config, **plan)


def _qwen(row: Row, model: dict[str, Any]) -> Run:
    lora = 64 if "LoRA" in str(row.get("method")) else 0
    assumed = ["Qwen2's code in Qwen's sizes", "finetune.py's defaults: checkpointing"]
    plan: dict[str, Any] = {"attention": "flash", "checkpointing": "full", "lora_rank": lora}
    if lora:
        assumed.append("LoRA of rank 64 on all layers")
    if lora and row["n_gpus"] == 1:
        return _run(row, model, "torch", [*assumed, "weights in bf16"], **plan)
    # All parameters: finetune_ds.sh, the README's only script for them, which has ZeRO-3 on one GPU, too.
    return _by_deepspeed(row, model, 3, assumed, **plan)


def _swift(row: Row, model: dict[str, Any]) -> Run:
    assumed = ["ms-swift's defaults: checkpointing, its zero3.json", "FlashAttention 2"]
    return _by_deepspeed(row, model, 3, assumed, attention="flash", checkpointing="full")


def _internevo(row: Row, model: dict[str, Any]) -> Run:
    assumed = [
        "DeepSpeed's stage 1 with overlap_comm in place of InternEvo's own ZeRO-1",
        "Llama's code in InternLM's sizes",
        "4 network cards of 100 Gbit/s a node",
    ]
    if "8" in str(row["zero_stage"]) and row["n_gpus"] > 8:
        assumed.append(
            "optimizer states cut among all ranks: DeepSpeed's stage 1 cannot among those of a node"
        )
    return _by_deepspeed(
        *(row, model, 1, assumed),
        machines=_machines(row, network_gbit_s=400),
        attention="flash",
        checkpointing="full" if row.get("ckpt") else "none",
    )


_SWEPT_WITH_FLASH = ("MPT-1b", "MPT-3b", "MPT-7b", "MPT-70b")
"""llm-foundry's scripts/train/benchmarking/sweep.py of January 2024, with which its table was published."""


def _foundry(row: Row, model: dict[str, Any]) -> Run:
    network = 1600 if str(row["gpu"]).startswith("a100") else None  # the README's headings
    # Its table of 128 and more H100s is of sweep.py, which says the kernel of each size.
    is_swept = row["gpu"] == "h100_80gb" and row["n_gpus"] >= 128
    has_flash = is_swept and row["model"] in _SWEPT_WITH_FLASH
    kernel = (
        "FlashAttention 2, as sweep.py has it"
        if has_flash
        else f"Triton's attention, {'as sweep.py has it' if is_swept else 'the default of the scripts'}"
    )
    return _run(
        *(row, model, "fsdp"),
        [
            "FSDP 2 in place of FSDP 1",
            "GPT-2's code in MPT's sizes",
            kernel,
            "torch's AdamW in place of Composer's",
        ],
        _machines(row, network_gbit_s=network),
        attention="flash" if has_flash else "efficient",
        checkpointing="full" if row.get("ckpt") else "none",
        stage=int(str(row["zero_stage"])[0]),
        reduced_in="bfloat16" if row.get("mp_mode") == "PURE" else "float32",
    )


def _titan(row: Row, model: dict[str, Any]) -> Run:
    return _run(
        *(row, model, "fsdp"),
        ["transformers' Llama in place of torchtitan's", "FlashAttention 2"],
        _machines(row, bandwidth_gb_s=2400),  # benchmarks/llama3_h100_202412_torchtitan.md, "Hardware"
        attention="flash",
        checkpointing="products",
        compiled="compile" in str(row.get("note")),
    )


def _bigscience(row: Row, model: dict[str, Any]) -> Run:
    assumed = [
        *("nodes of 4 cards", "attention written out", "checkpointing"),
        "a network of which an all-reduce gets 54 Gbit/s, as measured on these nodes, not of 400 Gbit/s",
    ]
    if "Megatron" in str(row["source"]):
        assumed.append("transformers' code in place of Megatron's")
    return _by_deepspeed(
        *(row, model, 3, assumed),
        # Its experiments/bandwidth of these 16 nodes in the same month; a ring is taken to get 0.93 of it.
        machines=_machines(row, gpus_per_node=4, network_gbit_s=round(54 / 0.93)),
        attention="eager",
        checkpointing="full",
        precision="fp16",
    )


def _examples(row: Row, model: dict[str, Any]) -> Run:
    return _by_deepspeed(
        *(row, model, 3, ["GPT-2's code in place of the example's own"]),
        attention="flash",
        checkpointing="full",
    )


_BY_SOURCE = {
    "QwenLM/Qwen README": _qwen,
    "ms-swift Quick-start": _swift,
    "InternEvo": _internevo,
    "llm-foundry": _foundry,
    "torchtitan": _titan,
    "bigscience": _bigscience,
    "bf16_master_weight": _examples,
}


# ---- rehearsing them


def step_seconds(times: Sequence[float], accumulated: Sequence[int], accumulation: int) -> float:
    """Of a step of so many micro-batches, from the steps that were played.

    Args:
        times: of the steps.
        accumulated: micro-batches of each; of the last two they may differ, and the row's have others.
        accumulation: micro-batches of a step in the row.
    """
    before, last = times[-2:]
    fewer, more = accumulated[-2:]
    if more in (accumulation, fewer):
        return last
    return last + (accumulation - more) * (last - before) / (more - fewer)


def rehearsed(run: Run) -> dict[str, Any]:
    """What a rehearsal says of it.

    Raises:
        RuntimeError: it did not come to its end.
    """
    machines, plan = run.machines, run.plan
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "plan.json").write_text(json.dumps(dataclasses.asdict(plan)), encoding="utf-8")
        card = ["--gpu", machines.card]
        if machines.network_gbit_s is not None or machines.bandwidth_gb_s is not None:
            (folder / "card.json").write_text(json.dumps({"gpu": _card(machines)}), encoding="utf-8")
            card = ["--hardware", "card.json"]
        done = rehearse(
            *("--num-gpus", machines.gpus, "--gpus-per-node", machines.gpus_per_node, *card),
            *("--time", "--steps", len(plan.accumulated), "--rank", 0, "--no-advise", "--format", "json"),
            *("--gpu-memory", "4TiB", "--host-memory", "16TiB"),
            *(SCRIPTS / "published_model.py", "plan.json"),
            cwd=folder,
        )
    if done.code not in (0, 1):
        raise RuntimeError(done.err[-2000:])
    time = done.report["time"]
    seconds = step_seconds([one["seconds"] for one in time["steps"]], plan.accumulated, run.accumulation)
    last = time["step_seconds"]
    return {
        "predicted": round(seconds, 4),
        "low": round(seconds * time["low_seconds"] / last, 4),
        "high": round(seconds * time["high_seconds"] / last, 4),
        "shares": {name: round(part / last, 3) for name, part in time["breakdown"].items()},
        "kernels": {one["name"]: round(one["seconds"] / last, 3) for one in time["kernels"][:6]},
        "mfu": round(time["mfu"], 3),
        "hfu": round(time["hfu"], 3),
        "versions": done.report["run"]["versions"],
    }


def _card(machines: Machines) -> dict[str, Any]:
    """The catalogue's card with another memory, or in a machine with another network."""
    name = find_gpu(machines.card).name
    catalogue = json.loads((REPOSITORY / "zerokit" / "hardware" / "gpus.json").read_text(encoding="utf-8"))
    card: dict[str, Any] = next(one for one in catalogue["gpus"] if one["name"] == name)
    node = {"gpus": machines.gpus_per_node, "ram_gib": 1800} | card.get("node", {})
    kept = {key: value for key, value in card.items() if key not in ("sources", "price")}
    if machines.network_gbit_s is not None:
        kept["node"] = node | {"network_gbit_s": machines.network_gbit_s}
    if machines.bandwidth_gb_s is not None:
        kept["bandwidth_gb_s"] = machines.bandwidth_gb_s
    return kept


def written_row(place: int, one: Judged, run: Run | None, told: Mapping[str, Any] | None) -> dict[str, Any]:
    """A row of the file: what was published, what it lacks or what was assumed, and what came out."""
    published = {key: value for key, value in one.row.items() if value is not None}
    if run is None or told is None:
        return {"row": place, "published": published, "lacks": list(one.lacks) or ["the model's layers"]}
    assert one.step_seconds is not None
    return {
        "row": place,
        "published": published,
        "assumed": [*one.assumed, *run.assumed],
        "measured": round(one.step_seconds, 4),
        **told,
        "error": round(told["predicted"] / one.step_seconds - 1, 4),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def summary(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line of a table for each source, and one for all: rows, and the size of their errors."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if "error" in row:
            by_source[row["published"]["source"]].append(abs(row["error"]))
    every = [error for errors in by_source.values() for error in errors]
    for source, unordered in [*by_source.items(), *([("all", every)] if every else [])]:
        errors = sorted(unordered)
        at_p90 = min(round(0.9 * len(errors)), len(errors) - 1)
        cells = [f"{len(errors)}", _percent(statistics.median(errors)), _percent(errors[at_p90])]
        yield _cells(source, *cells, f"{sum(error > FAR for error in errors)}")


def line_of(row: Mapping[str, Any]) -> str:
    """A row of a table: its place, the run, and what it lacks or what came out."""
    told = row["published"]
    batch = " x ".join(str(told.get(key) or "?") for key in ("micro_batch", "seq_len"))
    run = [str(told.get(key) or "?") for key in ("model", "gpu", "n_gpus")]
    if "lacks" in row:
        return _cells(row["row"], *run, batch, f"lacks {', '.join(row['lacks'])}")
    shares = [(share, name) for name, share in row["shares"].items() if share >= 0.05]
    parts = ", ".join(f"{name.replace('_', ' ')} {_percent(share)}" for share, name in sorted(shares)[::-1])
    seconds = [f"{row[key]:.3g}" for key in ("measured", "predicted")]
    return _cells(row["row"], *run, batch, *seconds, f"{row['error']:+.0%}"[:-1] + " %", parts)


def _cells(*words: object) -> str:
    return f"| {' | '.join(map(str, words))} |"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _places(words: Sequence[str], count: int) -> list[int]:
    """Of `55` and `14-33`."""
    places: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        places += range(int(first), int(last or first) + 1)
    return places if words else list(range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    known = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.is_file() else []
    rows: dict[int, dict[str, Any]] = {row["row"]: row for row in known}
    if not options.show:
        published = [judged(row) for row in json.loads(options.file.read_text(encoding="utf-8"))]
        for place in _places(options.rows, len(published)):
            if "error" in rows.get(place, {}) and not options.again:
                continue
            one = published[place]
            run = None if one.lacks else run_of(one.row)
            try:
                told = None if run is None else rehearsed(run)
            except RuntimeError as error:
                print(f"{place:4} could not be rehearsed: {error}", file=sys.stderr, flush=True)
                continue
            rows[place] = written_row(place, one, run, told)
            print(line_of(rows[place]), flush=True)
            if options.write:
                inorder = [rows[at] for at in sorted(rows)]
                WRITTEN.write_text(json.dumps(inorder, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        for row in rows.values():
            print(line_of(row))
    print("\n".join(summary(rows.values())))


if __name__ == "__main__":
    main()
