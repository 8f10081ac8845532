"""What one GPU holds in each phase of a training step under ZeRO 0 to 3, as terms.

The symbols of the formulas: Φ parameters, N ranks, e bytes per parameter and gradient, B reduce bucket
elements, b micro batch, s sequence, h hidden, f intermediate, V vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from zerokit.memory.decoder import (
    DecoderShape,
    activation_bytes,
    activation_gradient_bytes,
    loss_bytes,
)
from zerokit.memory.precision import StateBytes
from zerokit.memory.term import Phase, Term, total_bytes
from zerokit.memory.zero_buffers import (
    ALLREDUCE_BUCKET_ELEMENTS,
    OwnedGradients,
    ZeroOptions,
    fetch_copy_elements,
    flat_partition_elements,
    live_elements,
    owned_gradients,
    persistent_elements,
    shard_elements,
)

_STAGE_1_2 = "deepspeed/runtime/zero/stage_1_and_2.py"
_STAGE_3 = "deepspeed/runtime/zero/stage3.py"
_ENGINE = "deepspeed/runtime/engine.py"
_COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
_LLAMA = "transformers/models/llama/modeling_llama.py, saved tensors"


@dataclass(frozen=True)
class Run:
    """A training run as far as its memory depends on it."""

    shape: DecoderShape
    tie_word_embeddings: bool
    zero_stage: int
    world_size: int
    micro_batch_size: int
    seq_len: int
    states: StateBytes
    options: ZeroOptions

    @cached_property
    def sizes(self) -> list[int]:
        return list(self.shape.parameter_sizes(self.tie_word_embeddings))

    @cached_property
    def num_parameters(self) -> int:
        return sum(self.sizes)

    @cached_property
    def partition(self) -> int:
        """Elements of the optimizer's states on one rank."""
        if self.zero_stage == 0:
            return self.num_parameters
        if self.zero_stage == 3:
            return shard_elements(self.sizes, self.world_size)
        return flat_partition_elements(self.num_parameters, self.world_size)

    @cached_property
    def owned(self) -> list[OwnedGradients]:
        """The gradients that each rank keeps under stages 1 and 2."""
        return owned_gradients(self.sizes, self.world_size)

    @property
    def bucket(self) -> int:
        return self.options.reduce_bucket_size

    @property
    def reduces_during_backward(self) -> bool:
        """Stage 1 keeps all gradients until the epilogue, unless it overlaps communication."""
        return self.zero_stage >= 2 or self.options.overlap_comm

    @cached_property
    def activations(self) -> int:
        return activation_bytes(
            self.shape,
            micro_batch_size=self.micro_batch_size,
            seq_len=self.seq_len,
            bytes_per_element=self.states.parameter,
        )

    @cached_property
    def gatherable(self) -> int:
        """Elements that stage 3 gathers and releases: all but the persistent ones."""
        threshold = self.options.stage3_param_persistence_threshold
        return self.num_parameters - persistent_elements(self.sizes, threshold)


def always_terms(run: Run) -> list[Term]:
    """Parameters and optimizer states, and what stage 3 never frees."""
    stage, phi, part, n = run.zero_stage, run.num_parameters, run.partition, run.world_size
    e, k, source = run.states.parameter, run.states.optimizer, f"deepspeed/{run.states.source}"
    divided = {0: "Φ", 1: "Φ/N", 2: "Φ/N", 3: "Σ⌈size/N⌉"}[stage]
    states = Term("optimizer states", k * part, "always", f"{k}·{divided} = {k}·{part:,}", source)
    if stage < 3:
        elements = phi if stage == 0 else part * n
        return [Term("parameters", e * elements, "always", f"e·Φ = {e}·{elements:,}", source), states]
    g, bucket = run.states.gradient, run.bucket
    persistent = phi - run.gatherable
    return [
        Term("parameters", e * part, "always", f"e·{divided} = {e}·{part:,}", source),
        Term(
            "persistent parameters",
            e * persistent,
            "always",
            f"e·Σ sizes up to {run.options.stage3_param_persistence_threshold:,} = {e}·{persistent:,}",
            "deepspeed/runtime/zero/parameter_offload.py mark_persistent_parameters",
        ),
        Term(
            "gradients",
            g * part,
            "always",
            f"e·{divided} = {g}·{part:,}",
            f"{_STAGE_3} _setup_for_real_optimizer (grad_partitions_flat_buffer)",
        ),
        states,
        Term(
            "reduce bucket",
            g * bucket,
            "always",
            f"e·B = {g}·{bucket:,}",
            f"{_STAGE_3} _setup_for_real_optimizer",
        ),
    ]


def forward_terms(run: Run) -> list[Term]:
    """The end of the forward pass: all activations and the logits."""
    return [
        _activations(run, "forward", remaining=1),
        _logits(run, "forward"),
        *_gathered(run, "forward", already_reduced=0),
        *_fetch_copy(run, "forward"),
    ]


def loss_terms(run: Run) -> list[Term]:
    """The backward of the cross entropy, while all activations still live."""
    e, tokens, vocab = run.states.parameter, run.micro_batch_size * run.seq_len, run.shape.vocab_size
    logits = loss_bytes(
        run.shape, micro_batch_size=run.micro_batch_size, seq_len=run.seq_len, bytes_per_element=e
    )
    loss = Term(
        "logits and loss",
        logits,
        "loss",
        f"(12 + e)·b·s·V = {12 + e}·{tokens:,}·{vocab:,}",
        "transformers/loss/loss_utils.py ForCausalLMLoss",
    )
    return [_activations(run, "loss", remaining=1), loss, *_gathered(run, "loss", already_reduced=0)]


def backward_terms(run: Run) -> list[Term]:
    """The larger of two moments: the first layer of the backward pass, or the fullest reduction.

    Between them memory only falls, as activations are freed at least as fast as gradients are kept.
    """
    start = [
        _activations(run, "backward", remaining=1),
        _activation_gradients(run),
        *_ipg_buckets(run),
        *_gathered(run, "backward", already_reduced=0),
        *_fetch_copy(run, "backward"),
    ]
    if run.zero_stage == 0:
        reduction = _stage_0_reduction(run)
    elif run.reduces_during_backward:
        reduction = _bucket_reduction(run)
    else:
        reduction = _stage_1_reduction(run)
    return [_logits(run, "backward"), *max(start, reduction, key=total_bytes)]


def step_terms(run: Run) -> list[Term]:
    """Gradients and the copies that the optimizer's step makes of them."""
    if run.zero_stage == 0:
        return _stage_0_step(run)
    e, cast = run.states.gradient, 4 if run.states.gradient != 4 else 0
    if run.zero_stage == 3:
        # The shards are gradients that live always, so only the sub-group's flattened copies are new.
        group = min(run.options.sub_group_size, run.partition)
        formula = f"(e + cast)·min(sub_group_size, Φ/N) = {e + cast}·{group:,}"
        source = f"{_STAGE_3} _prepare_fp32_grad_for_sub_group"
        return [Term("flattened gradients", (e + cast) * group, "step", formula, source)]

    def of_rank(rank: OwnedGradients) -> list[Term]:
        flat = run.partition
        flattened = Term(
            "flattened gradients",
            (e + cast) * flat,
            "step",
            f"(e + cast)·Φ/N = {e + cast}·{flat:,}",
            f"{_STAGE_1_2} step",
        )
        norm = Term(
            "fp64 copy for the gradient norm",
            8 * rank.largest_slice,
            "step",
            f"8·largest gradient slice = 8·{rank.largest_slice:,}",
            f"{_STAGE_1_2} get_grad_norm_direct",
        )
        # The norm is computed before the gradients are flattened, and its copy is freed by then.
        return [_owned(run, rank, "step"), max(flattened, norm, key=lambda term: term.bytes)]

    return max(map(of_rank, run.owned), key=total_bytes)


def _stage_0_step(run: Run) -> list[Term]:
    e, phi = run.states.gradient, run.num_parameters
    terms = [Term("gradients", e * phi, "step", f"e·Φ = {e}·{phi:,}", _ENGINE)]
    if run.states.master:
        source = "deepspeed/runtime/fp16/fused_optimizer.py FP16_Optimizer.step"
        name = "fp32 gradients, each and flattened"
        terms.append(Term(name, 8 * phi, "step", f"(4 + 4)·Φ = 8·{phi:,}", source))
    return terms


def _stage_0_reduction(run: Run) -> list[Term]:
    """All gradients are there, the activations are gone, and the first bucket is flattened."""
    e, phi = run.states.gradient, run.num_parameters
    copy = min(phi, ALLREDUCE_BUCKET_ELEMENTS)
    return [
        Term("gradients", e * phi, "backward", f"e·Φ = {e}·{phi:,}", _ENGINE),
        Term(
            "flattened copy of gradients to reduce",
            e * copy,
            "backward",
            f"e·min(Φ, 5e8) = {e}·{copy:,}",
            f"{_ENGINE} allreduce_gradients",
        ),
    ]


def _stage_1_reduction(run: Run) -> list[Term]:
    """All gradients are there, the activations are gone, and the first bucket is being reduced."""
    e, waiting = run.states.gradient, run.num_parameters - min(run.num_parameters, run.bucket)
    gradients = Term(
        "gradients not yet reduced",
        e * waiting,
        "backward",
        f"e·(Φ - min(B, Φ)) = {e}·{waiting:,}",
        f"{_STAGE_1_2} overlapping_partition_gradients_reduce_epilogue",
    )
    return [gradients, *_ipg_buckets(run), _copy_or_owned(run)]


def _bucket_reduction(run: Run) -> list[Term]:
    """The first full bucket is being reduced; its part of the activations is gone."""
    reduced = min(run.bucket, run.num_parameters)
    return [
        _activations(run, "backward", remaining=1 - reduced / run.num_parameters),
        *_ipg_buckets(run),
        _reduce_copy(run) if run.zero_stage == 3 else _copy_or_owned(run),
        *_gathered(run, "backward", already_reduced=reduced),
        *_fetch_copy(run, "backward"),
    ]


def _copy_or_owned(run: Run) -> Term:
    """The bucket's flattened copy is freed before the owned gradients are first allocated.

    The rank that owns the parameters at the model's end allocates for all of its gradients then.
    """
    fullest = max(run.owned, key=lambda rank: rank.kept)
    return max(_reduce_copy(run), _owned(run, fullest, "backward"), key=lambda term: term.bytes)


def _logits(run: Run, phase: Phase) -> Term:
    """The model's output holds them until the training loop lets go of it, after the backward pass."""
    e, tokens, vocab = run.states.parameter, run.micro_batch_size * run.seq_len, run.shape.vocab_size
    formula = f"e·b·s·V = {e}·{tokens:,}·{vocab:,}"
    source = "transformers/models/llama/modeling_llama.py LlamaForCausalLM.forward"
    return Term("logits", e * tokens * vocab, phase, formula, source)


def _activations(run: Run, phase: Phase, *, remaining: float) -> Term:
    shape, tokens = run.shape, run.micro_batch_size * run.seq_len
    share = "" if remaining == 1 else f", {remaining:.1%} of them left"
    return Term(
        "activations",
        round(run.activations * remaining),
        phase,
        "L·b·s·((8 + 6e)·h + 2e·kv + 4e·f + 4a + 8) and the final norm"
        f" = {shape.num_hidden_layers}·{tokens:,}·(...) = {run.activations:,}{share}",
        _LLAMA,
    )


def _activation_gradients(run: Run) -> Term:
    e, tokens = run.states.parameter, run.micro_batch_size * run.seq_len
    gradients = activation_gradient_bytes(
        run.shape, micro_batch_size=run.micro_batch_size, seq_len=run.seq_len, bytes_per_element=e
    )
    formula = f"max(12h or 16h, 2e·f - (4 + e)·h)·b·s = {gradients // tokens:,}·{tokens:,}"
    return Term("gradients of activations", gradients, "backward", formula, _LLAMA)


def _ipg_buckets(run: Run) -> list[Term]:
    """The buckets of stages 1 and 2, allocated at full size at the first gradient of a step."""
    if run.zero_stage not in (1, 2):
        return []
    e, count = run.states.gradient, 2 if run.options.overlap_comm else 1
    formula = f"{'2·' if count == 2 else ''}e·B = {count * e}·{run.bucket:,}"
    return [Term("reduce bucket", count * e * run.bucket, "backward", formula, f"{_STAGE_1_2} setup_buckets")]


def _reduce_copy(run: Run) -> Term:
    e, elements = run.states.gradient, min(run.bucket, run.num_parameters)
    source = (
        "deepspeed/runtime/comm/coalesced_collectives.py reduce_scatter_coalesced"
        if run.zero_stage == 3
        else f"{_STAGE_1_2} allreduce_bucket"
    )
    formula = f"e·min(B, Φ) = {e}·{elements:,}"
    return Term("flattened copy of the reduce bucket", e * elements, "backward", formula, source)


def _owned(run: Run, rank: OwnedGradients, phase: Phase) -> Term:
    e = run.states.gradient
    formula = f"e·Σ sizes that touch the partition = {e}·{rank.kept:,}"
    return Term("gradients", e * rank.kept, phase, formula, f"{_STAGE_1_2} copy_grads_in_partition")


def _gathered(run: Run, phase: Phase, *, already_reduced: int) -> list[Term]:
    """Stage 3's whole parameters; those whose gradients are reduced have been released."""
    if run.zero_stage != 3:
        return []
    e, live = run.states.parameter, live_elements(max(0, run.gatherable - already_reduced), run.options)
    formula = f"e·min(Φ, stage3_max_live_parameters) = {e}·{live:,}"
    return [Term("gathered parameters", e * live, phase, formula, f"{_COORDINATOR} _fetch_sub_module_impl")]


def _fetch_copy(run: Run, phase: Phase) -> list[Term]:
    if run.zero_stage != 3:
        return []
    e, elements = run.states.parameter, fetch_copy_elements(run.sizes, run.options)
    formula = f"e·(stage3_prefetch_bucket_size + largest parameter) = {e}·{elements:,}"
    source = "deepspeed/runtime/zero/partition_parameters.py AllGatherCoalescedHandle.wait"
    return [Term("copy of parameters being gathered", e * elements, phase, formula, source)]
