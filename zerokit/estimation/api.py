"""`zerokit.estimate`: the estimate in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.choices import Attention, ChunkedLoss, OffloadDevice, OptimizerKind, Precision, Target
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
    zero_stage: int | None = None,
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
    packing: bool = False,
    generation: Generation | None = None,
    loads_full_copy_per_rank: bool | None = None,
) -> Estimate:
    """Estimate the memory of a training run, without running it and without torch.

    ::

        answer = zerokit.estimate("llama-3.1-8b", num_gpus=4, zero_stage=2, micro_batch_size=1, seq_len=4096)
        answer.device.peak_bytes, answer.device.peak_phase

    Args:
        model: a shape, or what :func:`zerokit.models.load_model_shape` takes, or a bare number of parameters
            such as ``"7.5B"``: then only model states and buffers are counted.
        num_gpus: data-parallel ranks, one GPU each.
        gpus_per_node: GPUs of one node.
        ds_config: a file, a dict or a config; or leave it out and say `zero_stage` and its companions.
        zero_stage: 0, 1, 2 or 3.
        offload_optimizer: where optimizer states are kept instead of the GPU, ``"cpu"`` or ``"nvme"``.
        offload_param: the same of parameters, in stage 3.
        precision: ``"bf16"``, ``"fp16"`` or ``"fp32"``; None: the ds_config's, else bf16.
        target: the program that hands the config to DeepSpeed and fills "auto".
        micro_batch_size: sequences per GPU and forward pass; None: the ds_config's, else 1.
        eval_batch_size: sequences per GPU of an evaluation during training; None: no evaluation.
        seq_len: tokens per sequence; None: activations are not counted.
        gradient_accumulation_steps: forward passes per optimizer step; None: the ds_config's, else 1.
        gradient_checkpointing: whether activations are recomputed in the backward pass.
        attention: transformers' `attn_implementation`; None: its default for the model.
        optimizer: the optimizer that the script makes; None: the ds_config's, else the target's default.
        lora: LoRA or DoRA adapters to train instead of all parameters.
        ia3: IA3 adapters to train instead.
        learned_tokens: learned tokens to train instead.
        load_in_4bit: bitsandbytes keeps the weights of linear layers in 4 bits, as for QLoRA.
        double_quant: their constants are quantized too.
        num_trainable_parameters: of a bare number of parameters, how many are trained; None: all.
        frozen_modules: prefixes of the names of parameters that are not trained.
        chunked_loss: ``"zerokit"`` or ``"liger"``, a loss that makes logits in chunks.
        packing: sequences hold several documents, which attention keeps apart by a mask (flash: without).
        generation: what an evaluation during training generates.
        loads_full_copy_per_rank: every rank builds the whole model on the host; None: below stage 3.

    Raises:
        ZerokitError: no such model, a ds_config with errors, sizes that cannot be, or settings that do not go
            together.
    """
    given = dict(locals())  # first, so only the parameters; their names are those of Question's fields
    cluster = Cluster(given.pop("num_gpus"), given.pop("gpus_per_node"))
    question = Question(**{**given, "model": as_model(model), "cluster": cluster})
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
