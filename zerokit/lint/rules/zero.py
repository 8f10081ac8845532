"""ZeRO stages and the keys that act in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zerokit.config.base import ZERO, is_comment
from zerokit.config.conditions import DEVICE, NO_WRITER, NOT_READ, OLD_SWITCH
from zerokit.config.unused_keys import UnusedKey
from zerokit.findings import Remove, Severity
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

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
