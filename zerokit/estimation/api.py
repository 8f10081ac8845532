"""`zerokit.estimate`: the estimate in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from zerokit.choices import Attention, ChunkedLoss, OffloadDevice, OptimizerKind, Precision, Target, ZeroStage
from zerokit.config import DeepSpeedConfig
from zerokit.errors import ZerokitError
from zerokit.estimation.request import Question, Runs
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Cluster
from zerokit.memory import Estimate, Generation, Ia3, LearnedTokens, Lora
from zerokit.memory import estimate as estimate_run
from zerokit.models import ModelShape, load_model_shape
from zerokit.units import parse_count


def estimate(
    model: str | Path | Mapping[str, Any] | ModelShape | int,
    *,
    num_gpus: int,
    gpus_per_node: int = GPUS_PER_NODE,
    ds_config: str | Path | Mapping[str, Any] | DeepSpeedConfig | None = None,
    zero_stage: ZeroStage | None = None,
    offload_optimizer: OffloadDevice | None = None,
    offload_param: OffloadDevice | None = None,
    precision: Precision | None = None,
    target: Target = "trainer",
    micro_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    seq_len: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = False,
    attention: Attention | None = None,
    optimizer: OptimizerKind | None = None,
    lora: Lora | None = None,
    ia3: Ia3 | None = None,
    learned_tokens: LearnedTokens | None = None,
    load_in_4bit: bool = False,
    double_quant: bool = False,
    num_trainable_parameters: int | None = None,
    frozen_modules: tuple[str, ...] = (),
    chunked_loss: ChunkedLoss | None = None,
    autocast: bool = False,
    packing: bool = False,
    generation: Generation | None = None,
    loads_full_copy_per_rank: bool | None = None,
) -> Estimate:
    """Estimate the memory of a training run, without running it and without torch.

    ::

        answer = zerokit.estimate("llama-3.1-8b", num_gpus=4, zero_stage=2, micro_batch_size=1, seq_len=4096)
        answer.device.peak_bytes, answer.device.peak_phase

    Parameters not listed here are fields of :class:`zerokit.estimation.Question`. They are repeated in the
    signature so that editors and type checkers see them.

    Args:
        model: a shape, or what :func:`zerokit.models.load_model_shape` accepts, or a bare number of
            parameters such as ``"7.5B"``: then only model states and buffers are counted.
        num_gpus: data-parallel ranks, one GPU each.
        gpus_per_node: GPUs of one node.

    Raises:
        ZerokitError: no such model, a ds_config with errors, sizes that cannot be, or settings that do not go
            together.
    """
    given = locals()
    settings = {field.name: given[field.name] for field in fields(Question) if field.name in given}
    question = Question(**settings | {"model": as_model(model), "cluster": Cluster(num_gpus, gpus_per_node)})
    return estimate_run(Runs().training_run(question))


def as_model(model: str | Path | Mapping[str, Any] | ModelShape | int) -> ModelShape | int:
    """A shape, or a bare number of parameters.

    Raises:
        ZerokitError: it is neither; the message is that for a model.
    """
    if isinstance(model, ModelShape | int):
        return model
    if isinstance(model, str):
        count = bare_count(model)
        if count is not None:
            return count
    # Models of families without code are built on torch's meta device, which imports torch; all others need
    # none.
    return load_model_shape(model)


def bare_count(text: str) -> int | None:
    """The number in ``"7.5B"``; None for other text, and for the name of a folder."""
    try:
        count = parse_count(text)
    except ZerokitError:
        return None
    if Path(text).exists():
        return None
    if count < 1:
        raise ZerokitError(f"{text} is no number of parameters", where="model", hint="Write it like 7.5B")
    return count
