"""The options of ``zerokit estimate``, by the heading of the help that lists them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit import choices
from zerokit.cli.command import required_unless
from zerokit.errors import ConfigError
from zerokit.generation.options import Mode
from zerokit.hardware import GPUS_PER_NODE
from zerokit.units import LARGEST_NUMBER, interpret_number


def _is_a_number(given: Mapping[str, Any]) -> bool:
    from zerokit.estimation.api import bare_count

    return bare_count(given.get("model") or "") is not None


REQUIRED = {
    "seq_len": required_unless(
        lambda given: given.get("generate") or _is_a_number(given),
        "option '--seq-len'",
        "Activations depend on it. A bare number of parameters such as 7.5B needs none",
    ),
    "zero_stage": required_unless(
        lambda given: given.get("generate") or given.get("ds_config"),
        "option '--zero-stage'",
        "Pass it, or a file with --ds-config",
    ),
}
"""Callbacks of options that another one replaces."""


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """All options of ``zerokit estimate``."""

    model: str
    num_gpus: str
    generate: bool = False
    prompt_tokens: int | None = None
    new_tokens: int | None = None
    batch_size: int | None = None
    mode: Mode | None = None
    gpus_per_node: int = GPUS_PER_NODE
    sequence_parallel: int = 1
    tensor_parallel: int = 1
    micro_batch_size: str | None = None
    eval_batch_size: int | None = None
    seq_len: str | None = None
    gradient_accumulation_steps: int | None = None
    ds_config: Path | None = None
    target: choices.Target = "trainer"
    zero_stage: str | None = None
    offload_optimizer: choices.OffloadDevice | None = None
    offload_param: choices.OffloadDevice | None = None
    precision: choices.Precision | None = None
    autocast: bool = False
    gradient_checkpointing: bool = False
    attention: choices.Attention | None = None
    optimizer: choices.OptimizerKind | None = None
    lora_rank: int | None = None
    lora_targets: str | None = None
    dora: bool = False
    lora_dropout: bool = False
    peft: choices.PeftMethod | None = None
    virtual_tokens: int | None = None
    load_in_4bit: bool = False
    double_quant: bool = False
    trainable_parameters: str | None = None
    freeze: list[str] | None = None
    chunked_loss: bool = False
    liger: bool = False
    packing: bool = False
    tiled_mlp: bool = False
    activation_offloading: bool = False
    gpu: str | None = None
    gpu_memory: str | None = None
    host_memory: str | None = None
    fit: str | None = None
    details: bool = False
    explain: bool = False
    plot: Path | None = None
    html: Path | None = None
    output_format: choices.OutputFormat = "text"
    output: Path | None = None
    force: bool = False


CARD = "card"
"""The value of ``--fit`` by itself: the memory of the card."""


def sizes(text: str | None, option: str, least: int = 1, most: int = LARGEST_NUMBER) -> tuple[Any, ...]:
    """Parse ``"1,2,4"`` into distinct numbers; a stage may be the word none, tokens ``"128k"`` or ``"1M"``.

    Raises:
        ConfigError: not whole numbers, or one below `least` or above `most`.
    """
    found: list[int | str] = []
    of_tokens = option == SIZES["seq_len"][0]
    if of_tokens and text is not None and re.fullmatch(r"\d{1,3}(,\d{3})+", text.strip(), re.ASCII):
        hint = f"Write {text.replace(',', '')}, or '{text.replace(',', ', ')}' for several lengths"
        raise ConfigError(f"'{text}' may be one length or several", where=option, hint=hint)
    for word in () if text is None else text.split(","):
        if word.strip().lower() == "none" and option == SIZES["zero_stage"][0]:
            found.append("none")
            continue
        meant = interpret_number(word, of_tokens=of_tokens)
        try:
            size = meant if of_tokens and meant is not None else int(word)
        except ValueError:
            hint = "Write it like 4, or 1,2,4" if meant is None else f"Write {meant}"
            raise ConfigError(f"'{word}' is not a whole number", where=option, hint=hint) from None
        if size < least:
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} or more")
        if size > most:
            word = ", or none" * (option == SIZES["zero_stage"][0])
            raise ConfigError(f"is {size}", where=option, hint=f"Give {least} to {most}{word}")
        found.append(size)
    return tuple(dict.fromkeys(found))


SIZES: Mapping[str, tuple[str, int, int]] = {
    "zero_stage": ("--zero-stage", 0, 3),
    "num_gpus": ("--num-gpus", 1, LARGEST_NUMBER),
    "micro_batch_size": ("--micro-batch-size", 1, LARGEST_NUMBER),
    "seq_len": ("--seq-len", 1, LARGEST_NUMBER),
}
"""Option, minimum and maximum of each parameter that may be a list."""
