"""Memory of generation on the GPU: weights, the KV cache, and the working memory of a forward pass.

:func:`generation_terms` adds generation to a training run. :func:`generation_memory` replays a run that only
generates, in one of the modes of ``zerokit generate``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from zerokit.choices import Precision
from zerokit.config import load_ds_config
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster, Parallelism
from zerokit.memory.bnb_4bit import stored_layout
from zerokit.memory.gpu import WORKSPACE, WORKSPACE_BYTES, calls_of, sizes_of_run
from zerokit.memory.host import parameters_alone
from zerokit.memory.layout import Layout, layout_of
from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.overheads import overhead_terms
from zerokit.memory.replay import EVALUATION_WORK
from zerokit.memory.settings import Settings, settings_of
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import PARAMETERS, Stage, hold_parameters
from zerokit.memory.stage_3 import PERSISTENT, Stage3, shard
from zerokit.memory.tensor_parallel import divided
from zerokit.memory.term import Term, kinds_of
from zerokit.memory.timeline import Timeline
from zerokit.memory.training_run import Generation, TrainingRun
from zerokit.models import ModelShape
from zerokit.reporting.verdicts import HostFit, host_fit
from zerokit.resolving.filled_keys import SIZE_RULES
from zerokit.resolving.nvme_buffers import NvmeBuffers

CACHE_SLACK = 64
"""Columns by which the buffers of keys and values grow at once (``generation/decoding.py``)."""

GenerationMode = Literal["replicated", "gathered", "sharded", "tensor", "offloaded"]
"""``replicated``: each rank holds all weights. ``gathered``: they are those of a ZeRO-3 engine, gathered once.
``sharded``: ZeRO-3 gathers them in every pass. ``tensor``: AutoTP divides each layer. ``offloaded``: ZeRO-3
with the weights in host memory or on NVMe."""

KINDS = kinds_of(__file__)


def generation_terms(model: ModelShape, layout: Layout, settings: Settings, generation: Generation) -> list[Term]:
    """Terms of the phase "generation".

    Stage 3 gathers parameters ahead, up to `stage3_max_live_parameters`.
    """
    e = settings.parameter_bytes
    if model.num_hidden_layers is None or model.vocab_size is None:
        return []
    tokens = generation.batch_size * generation.seq_len
    held = [
        (KINDS.KV_CACHE, e, cached_layers(model) * tokens * sum(cached_widths(model))),
        (KINDS.ONE_TOKEN, e + 4, generation.batch_size * model.vocab_size),
    ]
    if settings.stage == 3 and settings.zero_ranks > 1:
        held.append((KINDS.GATHERED_AHEAD, e, min(layout.num_parameters, settings.max_live)))
    return [kind.term("generation", {unit: count}) for kind, unit, count in held]


def cached_widths(model: ModelShape) -> tuple[int, int]:
    """Elements of the keys and of the values that a layer caches for a token.

    transformers caches the expanded keys and values of latent attention (modeling_deepseek_v3.py).
    """
    heads = model.num_attention_heads or 1
    head = model.head_dim or (model.hidden_size or 1) // heads
    config = model.config.get("text_config") or model.config
    if isinstance(config.get("kv_lora_rank"), int):
        rotary = config.get("qk_rope_head_dim", 0)
        return heads * (config.get("qk_nope_head_dim", head - rotary) + rotary), heads * config.get("v_head_dim", head)
    width = (model.num_key_value_heads or heads) * head
    return width, width


def cached_layers(model: ModelShape) -> int:
    """Layers with a KV cache: all but those of linear attention, convolutions and state spaces."""
    config = model.config.get("text_config") or model.config
    types = config.get("layer_types") or ["full_attention"] * (model.num_hidden_layers or 0)
    return sum(kind.endswith("attention") and "linear" not in kind for kind in types)


def zero_section(
    mode: GenerationMode, hidden: int, *, pinned: bool = True, nvme_path: str | None = None
) -> dict[str, Any]:
    """The section `zero_optimization` of a mode, with transformers' sizes for a model of width `hidden`."""
    if mode in ("replicated", "tensor"):
        return {"stage": 0}
    # DeepSpeed's linear saves memory for the backward pass alone, and takes twice as long for few rows.
    section: dict[str, Any] = {"stage": 3, "memory_efficient_linear": False}
    section |= {key: rule.elements(hidden) for key, rule in SIZE_RULES.items()}
    if mode == "offloaded":
        place = {"device": "cpu"} if nvme_path is None else {"device": "nvme", "nvme_path": nvme_path}
        section["offload_param"] = place | {"pin_memory": pinned}
    return section


@dataclass(frozen=True, kw_only=True)
class GenerationRun:
    """Ranks that only generate.

    Raises:
        ZerokitError: a size is not positive, the model is no text model, or it cannot be divided that way.
    """

    model: ModelShape
    cluster: Cluster
    mode: GenerationMode
    prompt_tokens: int
    """Of the longest prompt."""
    new_tokens: int
    batch_size: int = 1
    """Sequences that a rank decodes at once; of tensor parallelism, those of all its ranks together."""
    precision: Precision = "bf16"
    nvme: bool = False
    """Offloaded weights are on NVMe."""
    on_cpu: bool = False
    """The ranks compute on CPUs, without the workspace of cuBLAS."""
    zero: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The section of a ds_config of stage 3; empty: :func:`zero_section`."""
    sequences: int | None = None
    """Completions of all ranks; None: as many as fill the batches."""

    def zero_section(self, *, pinned: bool = True, nvme_path: str = "/local_nvme") -> dict[str, Any]:
        """The section `zero_optimization`; which `nvme_path` does not change the memory.

        Buffers for NVMe get the model's sizes: DeepSpeed's own are too small for large embeddings, and pin
        gigabytes for small models.
        """
        path = nvme_path if self.nvme else None
        hidden = self.model.hidden_size or 1024
        zero = {**self.zero} or zero_section(self.mode, hidden, pinned=pinned, nvme_path=path)
        bytes_each = 4 if self.precision == "fp32" else 2
        buffers = NvmeBuffers(self.model, self.cluster.world_size, bytes_each).missing({"zero_optimization": zero})
        return zero | ({"offload_param": zero["offload_param"] | buffers} if buffers else {})

    @cached_property
    def training_run(self) -> TrainingRun:
        """The prefill as a forward pass of a run."""
        data = {"zero_optimization": self.zero_section(), "train_micro_batch_size_per_gpu": self.batch_size}
        data |= {name: {"enabled": name == self.precision} for name in ("bf16", "fp16")}
        if self.mode == "tensor":
            data["tensor_parallel"] = {"vocab_parallel_lm_head": False}  # all ranks need all scores
        return TrainingRun(
            model=self.model,
            cluster=self.cluster,
            parallelism=Parallelism(tensor=self.cluster.world_size if self.mode == "tensor" else 1),
            micro_batch_size=self.batch_size,
            seq_len=self.prompt_tokens,
            ds_config=load_ds_config(data),
            target="deepspeed",
        )


@dataclass(frozen=True)
class GenerationMemory:
    """Memory of one GPU at the peak of a run, in bytes, and of one node's host."""

    weights: int
    kv_cache: int
    workspace: int
    """Hidden states, logits, buffers and gathered parameters."""
    low: int
    """What a GPU must have: the peak with the smallest CUDA context and communication."""
    fragmented: int
    """The peak with fragmentation."""
    high: int
    """The same with the largest context and communication."""
    host: HostFit

    @property
    def peak(self) -> int:
        """As torch allocates."""
        return self.weights + self.kv_cache + self.workspace


def generation_memory(run: GenerationRun) -> GenerationMemory:
    """Replay the prefill of a full batch and the pass of its last token. ZerokitError as :class:`GenerationRun`."""
    training = run.training_run
    settings, ranks = settings_of(training), training.parallelism.tensor
    layout = divided(layout_of(training), ranks, tied=training.divides_tied_head, zero_init=False)
    sizes = sizes_of_run(training, settings)
    calls = calls_of(training, layout, settings, sizes)
    if sizes is None or calls is None:
        raise ZerokitError(f"{run.model.name} is no text model", where="MODEL", hint="Name a language model")
    timeline = Timeline()
    stage = _begin(run, timeline, layout, settings, calls)
    timeline.hold(WORKSPACE, WORKSPACE_BYTES, not run.on_cpu)
    passes = _Passes(timeline, stage, calls, run)
    passes.forward(sizes, run.prompt_tokens)
    timeline.enter("generation")
    room = -(-run.new_tokens // CACHE_SLACK) * CACHE_SLACK
    passes.forward(replace(sizes, seq=1), run.prompt_tokens + room)
    cache = timeline.bytes_of(KINDS.KV_CACHE)
    weights = sum(
        unit * count
        for kind, amounts in timeline.held.items()
        for unit, count in amounts.items()
        if kind.category == "parameters"
    )
    extra = overhead_terms(timeline.peak_bytes, run.cluster.world_size)
    host, files = parameters_alone(layout, settings) if settings.offload_param != "none" else (0, 0)
    local = run.cluster.local_ranks
    return GenerationMemory(
        *(weights, cache, timeline.peak_bytes - weights - cache),
        low=timeline.peak_bytes + sum(term.low for term in extra),
        fragmented=timeline.peak_bytes + extra[0].high,
        high=timeline.peak_bytes + sum(term.high for term in extra),
        host=host_fit(run.cluster, local * host, local * files),
    )


def _begin(run: GenerationRun, timeline: Timeline, layout: Layout, settings: Settings, calls: ModelCalls) -> Stage:
    """Hold the weights, and return what gathers them."""
    e, parameters = settings.parameter_bytes, layout.parameters
    if settings.stage == 0 or run.mode == "gathered":
        hold_parameters(timeline, PARAMETERS, e, parameters)
        if run.mode == "gathered":
            timeline.hold(PARAMETERS, e, sum(shard(one, settings.zero_ranks) for one in parameters))
        return Stage()
    order = (calls.whole, calls.whole, *(call for block in calls.blocks for call in block.calls), calls.head)
    small = [one for one in parameters if one.elements <= settings.persistence_threshold]
    on_gpu = parameters if settings.offload_param == "none" else ()
    shards = (replace(one, elements=shard(one, settings.zero_ranks)) for one in on_gpu)
    hold_parameters(timeline, PARAMETERS, e, shards)
    hold_parameters(timeline, PERSISTENT, e, small)
    return Stage3(timeline, stored_layout(layout, e), settings, order)


class _Passes:
    """Forward passes without gradients, on a stage."""

    def __init__(self, timeline: Timeline, stage: Stage, calls: ModelCalls, run: GenerationRun) -> None:
        self.timeline, self.stage, self.calls, self.run = timeline, stage, calls, run

    def forward(self, sizes: Sizes, cached: int) -> None:
        """One pass, after which the cache has `cached` tokens of each sequence."""
        timeline, stage, e = self.timeline, self.stage, sizes.e
        stage.begin_pass(boundary=False)
        for _ in range(2):
            stage.fetch(self.calls.whole)
        timeline.hold(KINDS.HIDDEN_STATES, e, 4 * sizes.h * sizes.tokens)
        timeline.hold(KINDS.PADDING_MASK, 1, sizes.batch * sizes.seq * cached if sizes.batch > 1 else 0)
        widths = [sizes.batch * cached * width // sizes.tensor for width in cached_widths(self.run.model)]
        grown = cached_layers(self.run.model) * sum(widths) - timeline.bytes_of(KINDS.KV_CACHE) // e
        layers = sum(block.is_layer for block in self.calls.blocks)
        for block in self.calls.blocks:
            is_attended = not block.is_layer
            for call in block.calls:
                stage.fetch(call)
                # Nothing is saved: an operation has its input and output, and a gated activation three tensors.
                timeline.spike(EVALUATION_WORK, sizes.tokens, max(2 * call.work, call.saved_bytes))
                if not (is_attended or call.module) and call.saved_bytes:  # attention
                    timeline.spike(KINDS.GROWING_CACHE, e, sum(widths))
                    timeline.hold(KINDS.KV_CACHE, e, grown // layers)
                    is_attended = True
                stage.release(call)
        head = self.calls.head
        stage.fetch(head)
        timeline.hold(KINDS.ONE_TOKEN, e + 4, sizes.batch * sizes.vocabulary)
        stage.release(head)
        timeline.free_all(KINDS.ONE_TOKEN)
        timeline.free_all(KINDS.HIDDEN_STATES)
        timeline.free_all(KINDS.PADDING_MASK)
