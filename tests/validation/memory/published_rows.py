"""Published memory figures, and what the estimate says of each that says enough.

A figure is of one of three kinds: ``states`` is arithmetic of the ZeRO paper, ``allocated`` was read from
torch's allocator, and ``driver`` is what nvidia-smi or an unnamed tool showed, rounded: CUDA's context, NCCL
and what the allocator keeps in reserve are in it, so that the estimate's interval is what compares with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from zerokit.estimation import Question, Runs
from zerokit.hardware.cluster import Cluster
from zerokit.memory import Estimate, Lora, estimate, model_states
from zerokit.models import load_model_shape

GIB = 2**30
GB = 10**9

Row = dict[str, Any]
Kind = Literal["states", "allocated", "driver"]


@dataclass(frozen=True)
class Judged:
    """One figure and what the estimate says of it."""

    row: int
    """Its place in the data, from 0."""
    source: str
    what: str
    kind: Kind
    unit: str
    measured: float
    predicted: float
    error: float
    """Of `predicted`, the middle of the interval for `driver`."""
    low: float | None = None
    high: float | None = None
    inside: bool | None = None
    """Whether the interval holds the figure."""
    assumed: str = ""


@dataclass(frozen=True)
class Unjudged:
    """A row that cannot be judged."""

    row: int
    source: str
    what: str
    why: str


def judge_all(rows: list[Row]) -> list[Judged | Unjudged]:
    """Every row; one with two figures twice."""
    found: list[Judged | Unjudged] = []
    for place, one in enumerate(rows):
        row = {**one, "note": one["note"] or ""}
        judged = list(_judge(place, row))
        found += judged or [Unjudged(place, row["source"], _what(row), why_not(row))]
    return found


def _judge(place: int, row: Row) -> Iterator[Judged]:
    source = row["source"]
    if source.endswith("Table 1") and row["kind"].startswith("analytic"):
        yield _table_1(place, row)
    elif source.endswith("Table 2") and row["kind"] == "analytic boundary":
        yield _table_2(place, row)
    elif "bf16_master_weight" in source:
        yield from _bf16_master_weight(place, row)
    elif source.startswith("modelscope/ms-swift") and _swift_says_enough(row):
        yield _swift(place, row)
    elif source.startswith("QwenLM/Qwen") and str(row["zero_stage"]).startswith("3"):
        yield _qwen(place, row)


def _table_1(place: int, row: Row) -> Judged:
    states = model_states(int(row["params"]), zero_stage=row["zero_stage"], num_gpus=row["n_gpus"])
    return _exact(place, row, "states", "GB", row["measured_peak_gb"], states.total_bytes / GB)


def _table_2(place: int, row: Row) -> Judged:
    """The largest model that 32 GB take, model parallelism dividing it first."""
    degrees = {name: int(number) for name, number in re.findall(r"(DP|MP)=(\d+)", row["note"])}
    number = 10**12
    states = model_states(number, zero_stage=row["zero_stage"], num_gpus=degrees["DP"])
    largest = degrees["MP"] * row["gpu_mem_gb"] * GB * number / states.total_bytes
    return _exact(place, row, "states", "billions of parameters", row["params"] / GB, largest / GB)


SIMPLE_TRANSFORMER = {
    "model_type": "gpt2",
    "n_embd": 4096,
    "n_layer": 32,
    "n_head": 32,
    "n_inner": 16384,
    "vocab_size": 50000,
    "n_positions": 512,
    "tie_word_embeddings": False,
}


def _bf16_master_weight(place: int, row: Row) -> Iterator[Judged]:
    """training/bf16_master_weight/configs: baseline.json, and bf16_full.json with all states in bf16."""
    bf16: dict[str, Any] = {"enabled": True}
    if "fp32 master" not in row["precision"]:
        bf16 |= {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    ds_config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "bf16": bf16,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "contiguous_gradients": True,
            "reduce_bucket_size": 50_000_000,
            "stage3_param_persistence_threshold": 0,
        },
    }
    answer = _ask(
        model=load_model_shape(SIMPLE_TRANSFORMER),
        cluster=Cluster(4),
        ds_config=ds_config,
        target="deepspeed",
        micro_batch_size=1,
        seq_len=512,
        gradient_checkpointing=True,
        attention="eager",
    )
    assumed = "the script's own model, whose sizes are GPT-2's but for two norms and a bias"
    yield _exact(
        place, row, "allocated", "GiB", row["measured_peak_gb"], answer.device.peak_bytes / GIB, "peak", assumed
    )
    steady = re.search(r"memory_allocated ([\d.]+)", row["note"])
    assert steady is not None
    yield _exact(place, row, "allocated", "GiB", float(steady[1]), answer.device.steady_bytes / GIB, "steady", assumed)


def _swift_says_enough(row: Row) -> bool:
    if row["zero_stage"] not in (2, 3) or row["peft"] == "lora" or row["measured_peak_gb"] == row["gpu_mem_gb"]:
        return False
    note = row["note"]
    return ("packing=true" in note and "rlhf=None" in note) or "full SFT packing" in note


def _swift(place: int, row: Row) -> Judged:
    """ms-swift's own ds_configs are the Trainer's "auto" (swift/llm/ds_config)."""
    accumulated = re.search(r"ga[ =](\d+)", row["note"])
    answer = _ask(
        model=load_model_shape("Qwen/" + row["model"].removeprefix("Qwen/")),
        cluster=Cluster(row["n_gpus"]),
        ds_config=_trainer_config(row["zero_stage"]),
        micro_batch_size=int(row["micro_batch"]),
        seq_len=int(row["seq_len"]),
        gradient_accumulation_steps=int(accumulated[1]) if accumulated else 1,
        gradient_checkpointing=True,
        attention="flash_attention_2",
        packing=True,
        chunked_loss="liger"
        if "liger=true" in row["note"] and "Not using use_liger_kernel" not in row["note"]
        else None,
    )
    return _interval(place, row, "GiB", row["measured_peak_gb"], answer, 1, "read from nvidia-smi, and rounded")


QWEN = {"Qwen-7B": (4096, 11008, 32, 32, 151936), "Qwen-72B": (8192, 24576, 80, 64, 152064)}


def _qwen(place: int, row: Row) -> Judged:
    """finetune/finetune_ds.sh and finetune_lora_ds.sh: rows of data padded to the length, 8 accumulated.

    finetune.py has `lora_dropout` at 0.05.
    """
    hidden, inner, layers, heads, vocabulary = QWEN[row["model"]]
    config = {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
    wide = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj")
    answer = _ask(
        model=load_model_shape(config),
        cluster=Cluster(row["n_gpus"]),
        ds_config=_trainer_config(3),
        micro_batch_size=row["micro_batch"],
        seq_len=row["seq_len"],
        gradient_accumulation_steps=8,
        gradient_checkpointing=True,
        attention="flash_attention_2",
        optimizer="adamw",
        lora=Lora(64, wide, dropout=True) if row["peft"] == "lora" else None,
    )
    assumed = "Qwen2's code in Qwen's sizes; the figure is the sum of all GPUs, in GB"
    return _interval(place, row, "GB", row["measured_peak_gb"], answer, row["n_gpus"], assumed)


def _trainer_config(stage: int) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": "auto"}
    if stage == 2:
        zero |= {"reduce_bucket_size": 200_000_000, "contiguous_gradients": True}
    else:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": zero,
    }


def _ask(**question: Any) -> Estimate:
    return estimate(Runs().training_run(Question(**question)))


def _exact(
    place: int, row: Row, kind: Kind, unit: str, measured: float, predicted: float, which: str = "", assumed: str = ""
) -> Judged:
    error = predicted / measured - 1
    what = f"{_what(row)}, {which}" if which else _what(row)
    return Judged(
        place, row["source"], what, kind, unit, measured, round(predicted, 3), round(error, 4), assumed=assumed
    )


def _interval(place: int, row: Row, unit: str, measured: float, answer: Estimate, gpus: int, assumed: str) -> Judged:
    size = {"GiB": GIB, "GB": GB}[unit]
    low, high = (gpus * end / size for end in (answer.device_low_bytes, answer.device_high_bytes))
    middle = (low + high) / 2
    return Judged(
        place,
        row["source"],
        _what(row),
        "driver",
        unit,
        measured,
        round(middle, 2),
        round(middle / measured - 1, 4),
        round(low, 2),
        round(high, 2),
        # The figures are whole numbers.
        low - 0.5 <= measured <= high + 0.5,
        assumed,
    )


def _what(row: Row) -> str:
    words = [row["model"], f"stage {row['zero_stage']}"]
    if row["n_gpus"]:
        words.append(f"{row['n_gpus']} GPUs")
    if row["micro_batch"] and row["seq_len"]:
        words.append(f"{row['micro_batch']} x {row['seq_len']}")
    if row["peft"]:
        words.append(str(row["peft"]))
    return ", ".join(words)


# The first that applies: part of a source, and why its rows cannot be judged.
_SOURCES = (
    ("Megatron-LM golden", "Megatron-LM's own engine and kernels, not DeepSpeed's"),
    ("litgpt", "no DeepSpeed: another engine"),
    ("torchtune", "no DeepSpeed: another engine"),
    ("torchtitan", "no DeepSpeed: another engine"),
    ("InternEvo", "no DeepSpeed: another engine"),
    ("ml-engineering", "no run: what lies outside the allocator"),
    ("OpenTau", "the model's sizes are not stated, and it is no model of text"),
    ("issue 5305", "Megatron's model, with sequence parallelism"),
    ("issue", "micro batch or length is not stated"),
    ("muon-optimizer", "length and micro batch are not stated"),
    ("peft README", "length and micro batch are not stated"),
    ("bigscience", "Megatron's engine"),
    ("memory.rst", "what another tool answered, not a measurement"),
)


def why_not(row: Row) -> str:
    """What is missing in a row that cannot be judged."""
    if row["measured_peak_gb"] is None and row["kind"] == "measured":
        return "no figure: it only says that it did not fit"
    if "boundary" in row["kind"]:
        return "says what fits, not how much it takes"
    for part, reason in _SOURCES:
        if part in row["source"]:
            return reason
    if row["source"].startswith("QwenLM/Qwen"):
        return "no DeepSpeed: a single GPU"
    return _why_not_swift(row)


def _why_not_swift(row: Row) -> str:
    if row["zero_stage"] not in (2, 3):
        return "no DeepSpeed"
    if row["measured_peak_gb"] == row["gpu_mem_gb"]:
        return "as much as the card has: a bound, not a figure"
    if "rlhf=None" not in row["note"]:
        return "more than one model, or sizes not stated"
    return "the lengths of its rows are not known: they are not packed"
