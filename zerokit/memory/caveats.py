"""Warnings of an estimate: where it was not compared with rehearsals, and what it does not count."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.memory.gpu import GpuReplay
from zerokit.memory.layout import Layout
from zerokit.memory.leaf_modules import not_counted
from zerokit.memory.overheads import UNCHECKED_ACTIVATIONS
from zerokit.memory.settings import Settings
from zerokit.memory.training_run import TrainingRun
from zerokit.memory.traits import traits_of


def caveats(run: TrainingRun, layout: Layout, settings: Settings, found: GpuReplay) -> Iterator[str]:
    """Yield one sentence per warning."""
    yield from run.notes
    yield from _of_model(run, settings, found)
    if settings.optimizer.certainty != "exact":
        yield f"the states of {settings.optimizer.name} are {settings.optimizer.certainty}; rehearse the run"
    if run.chunked_loss == "liger":
        yield "the chunked loss is modelled after Liger's; rehearse the run"
    if settings.stage == 3 and settings.offload_param == "nvme" and settings.max_in_cpu:
        yield "which parameters stay in host memory depends on max_in_cpu; rehearse the run"
    if run.load_in_4bit:
        yield from _of_4_bits(run, settings)
    if settings.optimizer.paged:
        yield (
            "paged states of the optimizer are counted on the host; CUDA keeps them on the GPU while it has "
            "room, beside torch's allocator"
        )
    if run.autocast:
        yield "activations and copies of weights under autocast are modelled, and were not compared"
    if run.lora is not None:
        yield from _of_rank(layout, run.lora.rank)
    if run.learned_tokens is not None:
        yield "learned tokens are modelled, and were not compared with rehearsals"
    zero = run.ds_config.zero_optimization
    unchecked = {
        "zero_quantized_gradients": zero.zero_quantized_gradients,
        "zenflow": zero.zenflow is not None,
        "offload_optimizer.super_offload": zero.optimizer_offload is not None and zero.optimizer_offload.super_offload,
        "round_robin_gradients": zero.round_robin_gradients,
        "contiguous_gradients": not zero.contiguous_gradients,
        "stage3_module_granularity_threshold": zero.stage3_module_granularity_threshold > 0,
    }
    for key, differs in unchecked.items():
        if differs:
            yield f"zero_optimization.{key} is not counted; rehearse the run"
    yield from _of_parallelism(run)
    if run.ds_config.torch_autocast.enabled:
        yield "torch_autocast is not counted; rehearse the run"


def _of_parallelism(run: TrainingRun) -> Iterator[str]:
    sequence = run.parallelism.sequence
    if sequence > 1 and run.zero_stage < 3:
        yield (
            f"under ZeRO-{run.zero_stage} DeepSpeed adds up gradients of the {sequence} ranks that share a sequence: "
            "only a script's own loss can make them right"
        )
    if sequence > 1 and run.generation is not None:
        yield "generation is counted without sequence parallelism"


def _of_rank(layout: Layout, rank: int) -> Iterator[str]:
    sides = (one.elements // rank for one in layout.parameters if one.adapter in ("A", "dropped A", "B"))
    if rank > (smallest := min(sides)):
        yield (
            f"the LoRA rank {rank:,} is above {smallest:,}, the smaller side of an adapted matrix: "
            f"rank {smallest:,} adapts that matrix as well, with fewer parameters"
        )


def _of_4_bits(run: TrainingRun, settings: Settings) -> Iterator[str]:
    if isinstance(run.model, int):
        return
    model_type = run.model.model_type
    if not traits_of(model_type).torch_linear:
        yield f"no weight is in 4 bits: transformers packs no linear layer of {model_type}'s own class"
    elif model_type == "gpt2":
        yield "bitsandbytes keeps unpacked weights of GPT-2's layers, which are not counted; rehearse the run"
    if settings.stage == 3:
        yield (
            "weights in 4 bits are assumed to be loaded whole on each GPU, then partitioned; gathered ones "
            "that autograd keeps are not counted; rehearse the run"
        )


def _of_model(run: TrainingRun, settings: Settings, found: GpuReplay) -> Iterator[str]:
    model = run.model
    if isinstance(model, int):
        yield "activations are not counted: a number of parameters has no layers"
        return
    if settings.stage == 3:
        leaves = run.ds_config.zero_optimization.leaf_module
        for name in not_counted(found.model_calls, model.model_type, leaves):
            yield f"zero_optimization.leaf_module: '{name}' is not counted; rehearse the run"
    if run.seq_len is None:
        yield "activations are not counted: no sequence length is given"
    elif found.model_calls is None:
        yield f"activations are not counted: {model.model_type} is no text model; rehearse the run"
    elif not found.model_calls.known:
        low, high = UNCHECKED_ACTIVATIONS
        yield (
            f"activations of {model.model_type} have not been compared with rehearsals: they may be {low} to "
            f"{high} times as large; rehearse the run"
        )
    longest = model.max_position_embeddings
    if run.seq_len is not None and longest is not None and run.seq_len > longest:
        yield (
            f"sequences of {run.seq_len:,} tokens are longer than the {longest:,} positions that the model "
            "has (max_position_embeddings)"
        )
    if run.attention == "sdpa" and not model.has_sdpa:
        yield f"transformers refuses sdpa for {model.model_type}; leave --attention out to use eager"
    if model.quantization is not None:
        yield f"the model is counted as if it were not quantized ({model.quantization})"
    if model.is_moe:
        yield "tokens are assumed to be routed evenly; an overloaded expert needs more"
