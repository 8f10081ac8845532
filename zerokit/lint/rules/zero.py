"""ZeRO stages and the keys that act in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO, is_comment
from zerokit.config.conditions import DEVICE, NO_WRITER, NOT_READ, OLD_SWITCH, TORCH_FP32
from zerokit.config.unused_keys import UnusedKey
from zerokit.findings import Remove, Severity
from zerokit.lint.examples import ONE_SAMPLE, Facts, llama_8b, mixture_of_experts, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.resolving.who_fills import SIZE_RULES

rule = Rules("zero")
_HAVE_RULES_OF_THEIR_OWN = frozenset(
    {
        "stage",
        "compute_grad_norm",
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "legacy_stage1",
        "offload_optimizer",
        "offload_param",
        "pipeline_loading_checkpoint",
        "zenflow",
    }
)


def _idle_keys(subject: Subject) -> dict[str, UnusedKey]:
    """Keys of the file that DeepSpeed does not read in this stage."""
    if not subject.is_set(ZERO, "stage"):
        return {}
    return {
        str(path[1]): idle
        for path, idle in subject.unused.items()
        if path[0] == ZERO and len(path) == 2 and idle.by_stage and path[1] not in _HAVE_RULES_OF_THEIR_OWN
    }


@rule(
    "no-stage",
    bad={"train_micro_batch_size_per_gpu": 1, ZERO: {"offload_optimizer": {"device": "cpu"}}},
    good=zero(2, offload_optimizer={"device": "cpu"}),
)
def no_stage(subject: Subject) -> Iterator[Hit]:
    """A section 'zero_optimization' without a stage

    The stage is 0 unless it is given, and 0 means that ZeRO is off: nothing is divided among the GPUs, each
    of them holds the whole of the optimizer's states, and the other keys of the section do nothing.
    DeepSpeed reports nothing.

    Write the stage. Stage 1 divides the optimizer's states, 2 the gradients as well, 3 the parameters too.

    Source: `DeepSpeedZeroConfig.stage` in `deepspeed/runtime/zero/config.py`, and `zero_enabled` in
    `deepspeed/runtime/config.py`.
    """
    section = subject.written_value(ZERO)
    if not isinstance(section, Mapping) or not subject.is_absent(ZERO, "stage"):
        return
    keys = [key for key in section if not is_comment(key)]
    if keys:
        message = f"no 'stage' is given, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, 'Add "stage": 1, 2 or 3')


@rule(
    "stage3-key",
    severity="warning",
    bad=zero(2, stage3_max_live_parameters=1e8),
    good=zero(3, stage3_max_live_parameters=1e8),
)
def stage_3_key(subject: Subject) -> Iterator[Hit]:
    """A key that acts in stage 3 only

    In stages 1 and 2 every GPU holds all parameters, so there is nothing to gather, to prefetch or to
    release, and DeepSpeed does not hand these keys to the optimizer of those stages. It accepts them
    silently. Most often the stage was lowered and the keys stayed, or the stage is not the one that
    was meant.

    One of them is read elsewhere: with `tensor_parallel.autotp_size` above 1, accelerate reads
    `stage3_gather_16bit_weights_on_model_save` in every stage.

    Source: the arguments of both optimizers in `_configure_zero_optimizer`,
    `deepspeed/runtime/engine.py`.
    """
    if subject.stage not in (1, 2):
        return
    for key, idle in _idle_keys(subject).items():
        yield Hit((ZERO, key), f"'{key}' {idle.reason}", "Use stage 3, or remove the key")


@rule("stage12-key", severity="warning", bad=zero(3, round_robin_gradients=True), good=zero(3))
def stage_12_key(subject: Subject) -> Iterator[Hit]:
    """A key that acts in stages 1 and 2 only

    Stage 3 has an optimizer of its own, which is not given these keys: it gathers parameters as they are
    used rather than after each step, and it always spreads gradients over all ranks. DeepSpeed accepts the
    keys silently; `elastic_checkpoint` alone makes it say that it is no longer supported.

    Remove them: the run stays the same, and the file says what happens. `allgather_bucket_size`, which most
    templates have and which hardly ever matters, is an info.

    Source: the arguments of both optimizers in `_configure_zero_optimizer`,
    `deepspeed/runtime/engine.py`.
    """
    if subject.stage != 3:
        return
    for key, idle in _idle_keys(subject).items():
        severity: Severity | None = "info" if key == "allgather_bucket_size" else None
        yield Hit((ZERO, key), f"'{key}' {idle.reason}", "Remove the key", (Remove((ZERO, key)),), severity)


@rule("stage0-keys", severity="warning", bad=zero(0, reduce_bucket_size=2e8), good=zero(0))
def stage_0_keys(subject: Subject) -> Iterator[Hit]:
    """ZeRO options although ZeRO is off

    Stage 0 is plain data parallelism. None of the keys of `zero_optimization` is read: gradients are
    reduced in pieces of 5e8 elements, which no key changes.

    Raise the stage, or keep `"stage": 0` alone.

    Source: `_do_optimizer_sanity_check` and `MEMORY_OPT_ALLREDUCE_SIZE` in `deepspeed/runtime/engine.py`.
    """
    if subject.stage != 0:
        return
    keys = list(_idle_keys(subject))
    if keys:
        message = f"the stage is 0, so ZeRO is off and {_listed(keys)} {_do(keys)} nothing"
        yield Hit((ZERO,), message, "Use stage 1, 2 or 3, or remove what does nothing")


@rule("dead-key", severity="warning", bad=zero(2, allgather_partitions=False), good=zero(2))
def dead_key(subject: Subject) -> Iterator[Hit]:
    """A key that DeepSpeed accepts and no longer reads

    Nothing in DeepSpeed 0.19.8 reads these values, in any stage:

    - `zero_optimization.allgather_partitions`: updated parameters are always gathered by all-gather;
    - `disable_allgather`;
    - `pipeline.stages`, `pipeline.partition` and `pipeline.seed_layers`: the script's `PipelineModule` takes
      them as arguments;
    - `allgather_size`: where `zero_optimization` has its oldest form `true` it is a bucket that PyTorch since
      1.13 does without;
    - `weight_quantization.enabled`, `num_bits`, `q_type` and `q_groups` there.

    Remove them: the run stays the same, and the file says what happens.

    Source: `zero_allgather_partitions` in `deepspeed/runtime/engine.py`, which nothing calls;
    `get_disable_allgather` and `get_pipeline_config` in `deepspeed/runtime/config.py`.
    """
    for path, idle in subject.unused.items():
        if idle.acts.when in (NOT_READ.when, OLD_SWITCH) and path[-1] != "cpu_offload_use_pin_memory":
            # What the dead key says is nonetheless what happens.
            agrees = path[-1] == "allgather_partitions" and subject.zero.allgather_partitions
            message = f"'{path[-1]}' {idle.reason}"
            yield Hit(path, message, "Remove the key", (Remove(path),), "info" if agrees else None)


@rule("idle-key", severity="warning", bad={**zero(0), "zero_allow_untested_optimizer": True}, good=zero(0))
def idle_key(subject: Subject) -> Iterator[Hit]:
    """A key that has no effect with the other keys

    Keys outside `zero_optimization` that act in some stages only, such as `zero_allow_untested_optimizer` and
    `checkpoint.writer.data_parallel`, and offload options with the device `none`. DeepSpeed accepts them
    silently. Other rules report keys of this kind that need an explanation of their own.

    Remove them: the run stays the same, and the file says what happens.

    Source: `_configure_zero_optimizer` and `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`;
    `deepspeed/runtime/zero/offload_config.py`.
    """
    for path, idle in subject.unused.items():
        of_others = path[0] in (ZERO, "bf16", "fp16", "optimizer", "compile", "pipeline")
        if (idle.by_stage and not of_others) or (idle.acts.when in (DEVICE, NO_WRITER) and not idle.by_stage):
            yield Hit(path, f"'{path[-1]}' {idle.reason}", "Remove the key", (Remove(path),))


def _listed(keys: list[str]) -> str:
    shown = [f"'{key}'" for key in keys[:4]]
    if len(keys) > 4:
        return f"{', '.join(shown)} and {len(keys) - 4} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _do(keys: list[str]) -> str:
    return "does" if len(keys) == 1 else "do"


_LEAVES = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""The `model_type` of models whose expert blocks DeepSpeed treats as leaf modules by itself."""


@rule(
    "moe-leaf-module",
    severity="info",
    bad=zero(3),
    good=zero(3, leaf_module={"name_suffixes": ["mlp"]}),
    given=Facts(model=mixture_of_experts),
    needs=("model",),
)
def moe_leaf_module(subject: Subject) -> Iterator[Hit]:
    """A mixture of experts without leaf modules in stage 3

    Stage 3 gathers parameters module by module, all ranks together. If the experts are modules of their own,
    a rank that routes tokens to other experts than its neighbours gathers other parameters, and training gets
    stuck. DeepSpeed avoids this by gathering a block of experts as one ("leaf module"), and knows the blocks
    of Mixtral, Qwen2-MoE and Qwen3-MoE.

    Transformers 5 keeps the experts of most models in one tensor, which every rank gathers anyway, so that
    this is unlikely there. Name the block in `leaf_module` for older releases and for models with code of
    their own; accelerate does the same with `deepspeed_moe_layer_cls_names`.

    Source: `deepspeed/runtime/zero/leaf_module_config.py`; DeepSpeed pull requests 4966 and 5008.
    """
    model = subject.run.model
    if subject.stage != 3 or model is None or not model.is_moe or model.model_type in _LEAVES:
        return
    if subject.is_absent(ZERO, "leaf_module"):
        message = f"DeepSpeed has no leaf module for the experts of '{model.model_type}'"
        hint = "Name the class of its expert block in 'leaf_module.classes' if training gets stuck"
        yield Hit((ZERO,), message, hint)


@rule(
    "nothing-divided",
    severity="warning",
    bad=zero(3, stage3_param_persistence_threshold=1e9),
    good=zero(3, stage3_param_persistence_threshold=1e5),
    given=Facts(model=llama_8b),
    needs=("model",),
)
def nothing_divided(subject: Subject) -> Iterator[Hit]:
    """A persistence threshold that keeps most of the model on every GPU

    Parameters of up to `stage3_param_persistence_threshold` elements stay whole on every GPU, to spare many
    small messages. The threshold is meant for norms and biases. Above the size of a weight matrix, stage 3
    divides hardly anything any more and takes the memory of stage 2, with more communication.

    "auto" sets it to 10 times the hidden size.

    Source: `mark_persistent_parameters` in `deepspeed/runtime/zero/parameter_offload.py`.
    """
    model, key = subject.run.model, "stage3_param_persistence_threshold"
    threshold = subject.zero.stage3_param_persistence_threshold
    if (
        subject.stage != 3
        or model is None
        or not isinstance(threshold, int)
        or subject.is_uncertain(ZERO, key)
    ):
        return
    kept = sum(tensor.total_elements for tensor in model.tensors if tensor.elements <= threshold)
    kept = min(kept, subject.zero.stage3_model_persistence_threshold)
    if kept > model.num_parameters / 10:
        message = (
            f"parameters of up to {threshold:,} elements stay whole on every GPU: "
            f"{kept / model.num_parameters:.0%} of the model"
        )
        place = (ZERO, key) if subject.is_set(ZERO, key) else (ZERO,)
        wanted = SIZE_RULES[key].elements(model.hidden_size) if model.hidden_size else 100_000
        yield Hit(place, message, f'Set "{key}" to {wanted}')


@rule(
    "grad-norm-off",
    stops=True,
    bad=zero(2, compute_grad_norm=False),
    good={**ONE_SAMPLE, "gradient_clipping": 0.0, ZERO: {"stage": 2, "compute_grad_norm": False}},
)
def grad_norm_off(subject: Subject) -> Iterator[Hit]:
    """'compute_grad_norm' off although something needs the norm

    Clipping needs the norm of all gradients, and `gradient_clipping` is 1.0 unless the file says otherwise
    (since DeepSpeed 0.19.3). ZenFlow and optimizer offload need it too, and so does the optimizer that stage
    1 uses for bf16 parameters whose gradients are summed in fp32. DeepSpeed refuses each of them when
    training starts.

    To do without the norm, set `gradient_clipping` to 0.

    Source: `DeepSpeedZeroOptimizer.__init__` in `deepspeed/runtime/zero/stage_1_and_2.py`, and
    `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`.
    """
    stage, zero = subject.stage, subject.zero
    if zero.compute_grad_norm or stage not in (1, 2):
        return
    clipping = subject.value("gradient_clipping")
    sums_in_fp32 = subject.value("data_types", "grad_accum_dtype") in TORCH_FP32
    in_bf16 = subject.value("bf16", "enabled") is True
    if isinstance(clipping, (int, float)) and clipping > 0:
        by_default = "" if subject.is_set("gradient_clipping") else ", its default,"
        reason = f"'gradient_clipping' {clipping:g}{by_default} needs the norm"
        hint = 'Set "gradient_clipping" to 0, or remove the key'
    elif zero.zenflow is not None:
        reason, hint = "ZenFlow needs the norm", "Remove the key"
    elif subject.offloads_optimizer:
        reason, hint = "optimizer offload needs the norm", "Remove the key"
    elif stage == 1 and in_bf16 and sums_in_fp32:
        reason, hint = "stage 1 needs the norm for bf16 parameters with fp32 gradients", "Remove the key"
    else:
        return
    yield Hit((ZERO, "compute_grad_norm"), f"'compute_grad_norm' cannot be false: {reason}", hint)
