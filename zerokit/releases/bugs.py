"""Defects of DeepSpeed that a ds_config brings about, and the releases that have them.

Only what DeepSpeed itself does wrong, and only what was found in the sources of the releases:
``introduced_in`` and ``fixed_in`` are where the faulty and the mended lines first stand, as
``tools/deepspeed_surface/evidence.py`` lists them. Those marked as measured were also brought about by
training a small model with the releases on both sides of those versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from zerokit.releases.versions import Version, parse_version

Harm = Literal["wrong results", "crash", "hang", "memory", "speed"]


@dataclass(frozen=True, slots=True)
class KnownBug:
    """One defect."""

    id: str
    """A short stable name."""
    summary: str
    """What goes wrong, without a full stop."""
    when: str
    """What has to be so for it: settings by their ds_config names, in words."""
    harm: Harm
    always: bool
    """Whether it happens whenever `when` holds; else it is a race, or needs more than a config shows."""
    introduced_in: Version | None
    """The first release that has it; None: older than all that are supported."""
    fixed_in: Version | None
    """The first release without it; None: the newest supported one has it."""
    source: str
    """DeepSpeed's issues and pull requests or the place in its sources, and whether it was measured."""

    def affects(self, version: Version) -> bool:
        """Whether a release has this defect."""
        return (self.introduced_in is None or self.introduced_in <= version) and (
            self.fixed_in is None or version < self.fixed_in
        )


def _bug(
    id: str,
    releases: str,
    harm: Harm,
    source: str,
    *,
    when: str,
    summary: str,
    always: bool = False,
) -> KnownBug:
    first, _, fixed = (part.strip() for part in releases.partition(".."))
    return KnownBug(
        id=id,
        summary=summary,
        when=when,
        harm=harm,
        always=always,
        introduced_in=parse_version(first) if first else None,
        fixed_in=parse_version(fixed) if fixed else None,
        source=source,
    )


KNOWN_BUGS: tuple[KnownBug, ...] = (
    # Overlapped communication
    _bug(
        "overlap-wait",
        " .. 0.14.3",
        "wrong results",
        "#5606",
        when="zero_optimization.overlap_comm in stage 1 or 2",
        summary="A gradient bucket is written again while it is still being reduced, if communication takes "
        "longer than computation",
    ),
    _bug(
        "overlap-buffer-index",
        "0.17.2 .. 0.17.5",
        "wrong results",
        "#7188, #7371, #7805",
        when="zero_optimization.overlap_comm and contiguous_gradients in stage 1 or 2",
        summary="Both gradient buckets use one buffer, which is written again while it is still being "
        "reduced: the loss falls to 0 or becomes NaN after a few steps",
    ),
    _bug(
        "overlap-does-not-overlap",
        "0.17.5 .. 0.18.5",
        "speed",
        "#7804, #7805",
        when="zero_optimization.overlap_comm and contiguous_gradients in stage 1 or 2",
        summary="Communication does not overlap with the backward pass: each bucket is waited for",
        always=True,
    ),
    _bug(
        "overlap-buffer-lifetime",
        " .. 0.19.0",
        "wrong results",
        "#7965",
        when="zero_optimization.overlap_comm in stage 1 or 2",
        summary="Memory of gradients may be given to others while it is still being reduced: the loss "
        "becomes NaN or drifts",
    ),
    _bug(
        "overlap-producer-streams",
        " .. 0.19.3",
        "wrong results",
        "#8061, #8080",
        when="zero_optimization.overlap_comm and contiguous_gradients in stage 1 or 2, and torch.compile",
        summary="A gradient bucket is reduced before all of it is written: the loss becomes NaN",
    ),
    _bug(
        "zero3-gradient-stream",
        " .. 0.18.8",
        "wrong results",
        "#7898",
        when="stage 3 with torch 2.10 or newer",
        summary="Gradients are reduced before they are computed: weights become NaN on some ranks",
    ),
    # Training without GPUs
    _bug(
        "gloo-stage12-step",
        "0.18.7 .. 0.19.0",
        "crash",
        "#7948, introduced by #7828; measured",
        when="stage 1 or 2 on more than one rank without GPUs",
        summary="The optimizer's step fails: a view is modified in place",
        always=True,
    ),
    _bug(
        "gloo-gather",
        " .. 0.19.8",
        "wrong results",
        "deepspeed/runtime/zero/partition_parameters.py, _allgather_params_coalesced; measured",
        when="stage 3 on more than one rank without GPUs",
        summary="Parameters are used before they have arrived: weights become NaN or huge in some runs",
    ),
    # Gradient accumulation
    _bug(
        "zero2-accumulation",
        "0.17.6 .. 0.18.3",
        "wrong results",
        "#7718, introduced by #7509; measured",
        when="stage 2 without offload_optimizer, gradient_accumulation_steps above 1",
        summary="Only the last micro batch of each step counts; the gradients of the others are dropped",
        always=True,
    ),
    _bug(
        "zero2-offload-accumulation",
        "0.15.2 .. 0.19.0",
        "wrong results",
        "#7967, introduced by #6550; measured",
        when="stage 2 with offload_optimizer, gradient_accumulation_steps above 2",
        summary="Only the first and the last micro batch of each step count; the gradients of those between "
        "are dropped",
        always=True,
    ),
    _bug(
        "zero2-accumulation-format",
        " .. 0.19.8",
        "wrong results",
        "deepspeed/runtime/zero/stage_1_and_2.py, use_grad_accum_attribute; measured",
        when="stage 2 with data_types.grad_accum_dtype fp32, without offload_optimizer, "
        "gradient_accumulation_steps above 1",
        summary="data_types.grad_accum_dtype has no effect: gradients are accumulated in the model's number "
        "format",
        always=True,
    ),
    _bug(
        "zero1-not-divided",
        "0.17.6 .. 0.18.5",
        "memory",
        "#7788, introduced by #7515; measured",
        when="bf16 in stage 1 with data_types.grad_accum_dtype fp32",
        summary="The optimizer's state is not divided over the ranks: the stage is taken for 0",
        always=True,
    ),
    _bug(
        "bf16-optimizer-accumulation",
        "0.18.5 .. 0.19.0",
        "wrong results",
        "#7985; measured",
        when="bf16 in stage 1 with data_types.grad_accum_dtype fp32, without bf16.immediate_grad_update, on "
        "more than one rank",
        summary="The gradients of the last micro batch are not averaged over the ranks, so weights differ "
        "between ranks",
        always=True,
    ),
    # Training without ZeRO
    _bug(
        "stage0-fp16-no-step",
        "0.17.6 .. 0.18.2",
        "wrong results",
        "#7645, introduced by #7515",
        when="fp16 in stage 0 with FusedAdam, which 'Adam' and 'AdamW' mean on a GPU",
        summary="The optimizer never takes a step: the model does not learn",
        always=True,
    ),
    _bug(
        "stage0-fp16-unscaled",
        "0.18.3 .. ",
        "wrong results",
        "#8393, introduced by #7665; measured",
        when="fp16 in stage 0",
        summary="The loss is not multiplied by the loss scale, but gradients are divided by it: updates are "
        "thousands of times too small",
        always=True,
    ),
    _bug(
        "stage0-bf16-accumulates",
        "0.17.6 .. 0.18.6",
        "wrong results",
        "#7837, #7839, introduced by #7515; measured",
        when="bf16 in stage 0 with an optimizer other than FusedAdam, such as one that the script passes",
        summary="Gradients are not reset after a step, so those of all steps add up; since 0.18.3 they are "
        "also divided by a loss scale that was never applied",
        always=True,
    ),
    _bug(
        "stage0-bf16-checkpoint",
        "0.17.6 .. 0.18.5",
        "wrong results",
        "#7786, introduced by #7515",
        when="bf16 in stage 0, resuming from a checkpoint",
        summary="The optimizer's state is not in the checkpoint; it starts anew",
        always=True,
    ),
    _bug(
        "stage0-frozen-memory",
        "0.17.6 .. 0.19.1",
        "memory",
        "#8029, introduced by #7515",
        when="bf16 in stage 0 with frozen parameters, as LoRA has",
        summary="Master weights are kept for frozen parameters too, 4 bytes each",
        always=True,
    ),
    # Mixed precision under ZeRO
    _bug(
        "zero1-fp16-overflow",
        "0.17.1 .. 0.18.0",
        "wrong results",
        "#7568, #7580, introduced by #6976",
        when="fp16 in stage 1 on more than one rank",
        summary="Ranks do not tell each other of an overflow: some skip the step and others do not, so "
        "weights and loss scales differ",
    ),
    _bug(
        "zero12-infinite-norm",
        " .. 0.16.6",
        "wrong results",
        "#5242, #7171",
        when="gradient_clipping in stage 1 or 2",
        summary="A gradient norm of infinity becomes NaN, and clipping makes all weights NaN",
    ),
    _bug(
        "zero3-mixed-dtypes",
        "0.19.2 .. 0.19.3",
        "crash",
        "#8072, #8073, introduced by #8066",
        when="bf16 or fp16 in stage 3 with adapters in fp32, as PEFT makes them",
        summary="Persistent parameters of different number formats are gathered into buffers of one",
    ),
    _bug(
        "zero3-quantized-bf16",
        " .. 0.19.6",
        "wrong results",
        "#7775, #8215",
        when="zero_optimization.zero_quantized_weights with bf16",
        summary="Weights in bf16 are read as fp16 when they are quantised, and come back as fp16: wrong "
        "values, then an error about number formats",
        always=True,
    ),
    # ZeRO-3 parameters
    _bug(
        "hpz-stale-copy",
        "0.14.3 .. 0.18.3",
        "wrong results",
        "#5692, #7707, introduced by #5613",
        when="zero_optimization.zero_hpz_partition_size above 1, after weights or a checkpoint are loaded",
        summary="The copy of the parameters on each node keeps the old weights, and the next backward pass "
        "uses it",
    ),
    _bug(
        "hpz-small-parameters",
        " .. 0.19.5",
        "crash",
        "#6659, #8210",
        when="zero_optimization.zero_hpz_partition_size above 1 with parameters smaller than the ranks' "
        "shards",
        summary="Dividing a small parameter fails with an IndexError",
    ),
    _bug(
        "all-reduce-fetch-call",
        "0.16.3 .. 0.17.3",
        "crash",
        "#7414, introduced by #6694; measured",
        when="zero_optimization.stage3_use_all_reduce_for_fetch_params on more than one rank",
        summary="Waiting for parameters fails with a TypeError for 'handle_dependency'",
        always=True,
    ),
    _bug(
        "all-reduce-fetch-padding",
        "0.14.3 .. 0.19.4",
        "wrong results",
        "#8158, introduced by #5420; measured",
        when="zero_optimization.stage3_use_all_reduce_for_fetch_params with parameters whose size is no "
        "multiple of the ranks",
        summary="Uninitialised padding is added to the parameters that follow",
    ),
    _bug(
        "leaf-module-race",
        " .. 0.18.6",
        "crash",
        "#7824, #7825",
        when="stage 3 with leaf modules that return several tensors, such as mixtures of experts",
        summary="Threads of the backward pass change the state of the same parameters at once",
    ),
    _bug(
        "zero3-frozen-checkpointing",
        " .. 0.19.3",
        "crash",
        "#8130, #8148",
        when="stage 3 with frozen parameters, as LoRA has, and non-reentrant activation checkpointing",
        summary="Recomputing finds frozen parameters of shape [0]: CheckpointError in the backward pass",
    ),
    _bug(
        "zero3-wrapper-hooks",
        " .. 0.19.3",
        "crash",
        "#8144",
        when="stage 3 with modules that pass attributes on to others, such as PEFT's modules_to_save",
        summary="The backward pass ends with an AttributeError for 'ds_grads_remaining'",
    ),
    _bug(
        "zero3-reduce-one-by-one",
        "0.17.2 .. 0.17.3",
        "speed",
        "#7415, #7418, introduced by #6993",
        when="stage 3",
        summary="Once a bucket of gradients was full, every parameter is reduced by itself",
        always=True,
    ),
    _bug(
        "slow-backward-hooks",
        "0.18.5 .. 0.18.7",
        "speed",
        "#7882, #7885, #7886, introduced by #7780",
        when="stages 1, 2 and 3",
        summary="Every gradient counts all parameters anew: the backward pass takes twice as long or more",
        always=True,
    ),
    # Offload
    _bug(
        "pin-memory-ignored",
        "0.14.1 .. 0.18.3",
        "memory",
        "#7689",
        when="offload_optimizer in stage 1 or 2 with pin_memory false",
        summary="Master weights are pinned all the same",
        always=True,
    ),
    _bug(
        "cpu-lion-refused",
        " .. 0.17.6",
        "crash",
        "#7524, #7531",
        when="optimizer 'Lion' with offload_optimizer, unless zero_force_ds_cpu_optimizer is false",
        summary="DeepSpeed refuses its own Lion for the CPU",
        always=True,
    ),
    _bug(
        "super-offload-start",
        "0.18.0 .. 0.18.4",
        "crash",
        "#7627, #7715",
        when="offload_optimizer.super_offload in stage 3",
        summary="Building the optimizer fails: 'param_names' is not taken",
        always=True,
    ),
    _bug(
        "super-offload-groups",
        "0.18.0 .. 0.18.9",
        "wrong results",
        "#7905, #7906",
        when="offload_optimizer.super_offload with several parameter groups",
        summary="The settings of parameter groups are lost, such as no weight decay on biases",
    ),
    _bug(
        "nvme-open-files",
        "0.17.1 .. 0.19.3",
        "crash",
        "#8003, #8075",
        when="offload to nvme",
        summary="Files stay open after each transfer, until the process may open no more",
    ),
    _bug(
        "nvme-hang",
        " .. 0.18.4",
        "hang",
        "#7727",
        when="offload to nvme",
        summary="Waiting for a transfer holds Python's lock, and training stands still once in a while",
    ),
    _bug(
        "zenflow-backward",
        "0.18.3 .. 0.19.2",
        "wrong results",
        "#7759, #7771, introduced by #7665",
        when="zero_optimization.zenflow in stage 1 or 2",
        summary="What ZenFlow does before each backward pass is left out, such as choosing gradients anew",
    ),
    # Optimizers
    _bug(
        "fused-adam-large",
        " .. 0.18.1",
        "wrong results",
        "#7639, #7640",
        when="FusedAdam with more than 2^31 - 1 parameters of one group on a GPU, as stages 0, 1 and 2 may "
        "have",
        summary="The element count overflows, and parameters are not updated",
        always=True,
    ),
    _bug(
        "muon-untested",
        "0.17.6 .. 0.18.5",
        "crash",
        "#7802",
        when="optimizer 'Muon' with ZeRO, unless zero_allow_untested_optimizer is true",
        summary="DeepSpeed refuses its own Muon as an untested optimizer",
        always=True,
    ),
    _bug(
        "muon-reduce-scatter",
        "0.17.6 .. 0.19.3",
        "wrong results",
        "#7807, #8090, #8141",
        when="optimizer 'Muon' in stage 1 or 2 with reduce_scatter, which is the default, on more than one "
        "rank",
        summary="Matrices that lie on several ranks are updated from gradients that are not reduced, each "
        "rank in its own way",
        always=True,
    ),
    _bug(
        "muon-offload",
        "0.17.6 .. 0.19.8",
        "wrong results",
        "deepspeed/runtime/zero/stage_1_and_2.py, get_flat_partition",
        when="optimizer 'Muon' in stage 1 or 2 with offload_optimizer; refused since 0.19.3 unless "
        "reduce_scatter is false",
        summary="Muon's orthogonalisation is left out: the weights follow the plain gradient",
        always=True,
    ),
    _bug(
        "muon-parameter-groups",
        "0.17.6 .. 0.19.7",
        "wrong results",
        "deepspeed/runtime/engine.py, _configure_basic_optimizer",
        when="optimizer 'Muon' with parameter groups of the script's own",
        summary="The groups' settings are dropped, such as no weight decay on biases",
        always=True,
    ),
    # Schedulers
    _bug(
        "warmup-first-step",
        " .. 0.15.3",
        "wrong results",
        "#6597; measured",
        when="scheduler 'WarmupLR', 'WarmupDecayLR' or 'WarmupCosineLR'",
        summary="The first step is taken with the optimizer's full learning rate, before warming up",
        always=True,
    ),
    _bug(
        "warmup-groups",
        "0.17.2 .. 0.19.4",
        "wrong results",
        "#8171, introduced by #7360; measured",
        when="scheduler 'WarmupLR' without warmup_max_lr, and parameter groups of different learning rates",
        summary="All groups warm up to the learning rate of the first one",
        always=True,
    ),
    _bug(
        "cosine-first-step-groups",
        " .. 0.19.0",
        "wrong results",
        "#7969; measured",
        when="scheduler 'WarmupCosineLR' with several parameter groups",
        summary="Groups other than the first take the first step with their full learning rate",
        always=True,
    ),
    _bug(
        "cosine-rises-again",
        " .. 0.19.3",
        "wrong results",
        "#8142; measured",
        when="scheduler 'WarmupCosineLR' beyond total_num_steps",
        summary="After the last step of the schedule the learning rate rises again",
        always=True,
    ),
    _bug(
        "cosine-no-decay",
        " .. 0.19.3",
        "crash",
        "#8142; measured",
        when="scheduler 'WarmupCosineLR' with total_num_steps equal to warmup_num_steps",
        summary="The step after warming up divides by zero",
        always=True,
    ),
    _bug(
        "one-cycle-stairs",
        " .. 0.19.4",
        "wrong results",
        "#8179; measured",
        when="scheduler 'OneCycle' with cycle_first_stair_count or cycle_second_stair_count",
        summary="The counts have no effect",
        always=True,
    ),
    _bug(
        "one-cycle-lists",
        " .. 0.19.6",
        "crash",
        "#8201",
        when="scheduler 'OneCycle' with a list of values per parameter group",
        summary="A list is taken as one group's value",
        always=True,
    ),
    # Checkpoints and pipelines
    _bug(
        "universal-zero3-nodes",
        "0.14.5 .. 0.18.0",
        "wrong results",
        "#7585, #7599, #7601",
        when="checkpoint.load_universal in stage 3, on more ranks or nodes than before, or with several "
        "sub-groups",
        summary="The checkpoint does not convert or load, or its weights are loaded wrongly on several nodes",
    ),
    _bug(
        "nvme-save-race",
        " .. 0.18.0",
        "crash",
        "#7549, #7613",
        when="saving a checkpoint with offload to nvme",
        summary="All ranks copy their offloaded tensors into one folder of the checkpoint",
    ),
    _bug(
        "pipeline-backward",
        "0.18.3 .. 0.18.5",
        "hang",
        "#7787, introduced by #7665",
        when="a PipelineModule",
        summary="The backward pass does not run its hooks, and training hangs",
    ),
    _bug(
        "pipeline-repeated-scaling",
        "0.18.3 .. 0.19.3",
        "wrong results",
        "#8152, #8154",
        when="a PipelineModule of several stages with gradient_accumulation_steps above 1",
        summary="Every stage divides the gradients by the accumulation steps again",
        always=True,
    ),
)
"""By topic. The ids are unique and stay."""
