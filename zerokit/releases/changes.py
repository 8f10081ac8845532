"""Changes of meaning between DeepSpeed's releases that no key, default or bound shows.

Defaults that changed stand with their keys, see :func:`zerokit.releases.versions.default_at`. Each change
here was found in the sources of the releases, at the lines that ``tools/deepspeed_surface/evidence.py``
lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.releases.versions import Version, parse_version


@dataclass(frozen=True, slots=True)
class Change:
    """One change of meaning."""

    id: str
    """A short stable name."""
    since: Version
    """The first release that behaves as `after` says."""
    paths: tuple[str, ...]
    """The keys it is about, dotted; a section stands for all below it."""
    before: str
    """What older releases do, without a full stop."""
    after: str
    """What this and newer ones do, without a full stop."""
    source: str
    """DeepSpeed's pull request, or the file that shows it."""


def _change(id: str, since: str, paths: str, source: str, *, before: str, after: str) -> Change:
    return Change(id, parse_version(since), tuple(paths.split()), before, after, source)


CHANGES: tuple[Change, ...] = (
    _change(
        "communication-bf16",
        "0.14.1",
        "communication_data_type",
        "#5297",
        before="'bfp16' names bfloat16, and 'bf16' is refused",
        after="'bf16' names bfloat16, and 'bfp16' is refused",
    ),
    _change(
        "script-scheduler-first",
        "0.14.5",
        "scheduler",
        "#5846",
        before="The scheduler of the config is used even if the script passes one",
        after="A scheduler that the script passes is used, and that of the config is not",
    ),
    _change(
        "universal-zero3",
        "0.14.5",
        "checkpoint.load_universal",
        "#5475",
        before="Universal checkpoints do not work in stage 3",
        after="Universal checkpoints work in stage 3",
    ),
    _change(
        "whole-numbers",
        "0.15.0",
        "zero_optimization hybrid_engine",
        "#5167",
        before="A fraction where a whole number belongs, such as 0.9 * hidden_size^2, is cut off",
        after="A fraction where a whole number belongs is refused",
    ),
    _change(
        "precision-checked",
        "0.17.1",
        "fp16 bf16",
        "deepspeed/runtime/precision_config.py",
        before="Values are taken as they are: a fraction for fp16.min_loss_scale works, and the string "
        "'false' is true",
        after="Values are checked and converted: a fraction for fp16.min_loss_scale is refused",
    ),
    _change(
        "warmup-maximum",
        "0.17.2",
        "scheduler.params.warmup_max_lr",
        "#7360",
        before="Without warmup_max_lr, WarmupLR warms up to 0.001",
        after="Without warmup_max_lr, WarmupLR warms up to the optimizer's learning rate; WarmupDecayLR "
        "still to 0.001",
    ),
    _change(
        "bf16-without-zero",
        "0.17.6",
        "bf16 data_types.grad_accum_dtype",
        "#7515",
        before="bf16 in stage 0 accumulates gradients in fp32",
        after="bf16 in stage 0 accumulates gradients in bf16",
    ),
    _change(
        "master-weights-stages",
        "0.18.3",
        "fp16.fp16_master_weights_and_grads",
        "#7700",
        before="fp16_master_weights_and_grads is refused in stages other than 2",
        after="fp16_master_weights_and_grads works in stages 1, 2 and 3",
    ),
    _change(
        "loss-scale-checked",
        "0.18.8",
        "fp16.loss_scale",
        "#7889",
        before="Any number is taken",
        after="Negative and infinite numbers are refused",
    ),
    _change(
        "muon-zero3",
        "0.18.9",
        "optimizer",
        "#7919",
        before="The optimizer 'Muon' is refused in stage 3",
        after="The optimizer 'Muon' works in stage 3, if reduce_scatter is false",
    ),
    _change(
        "buffers-keep-format",
        "0.19.2",
        "data_types.buffer_dtype",
        "#8066",
        before="fp16 and bf16 convert a model's buffers too, such as the frequencies of rotary embeddings",
        after="Buffers keep the number format they were loaded in, unless data_types.buffer_dtype is given",
    ),
    _change(
        "dynamic-scale-checked",
        "0.19.3",
        "fp16.loss_scale_window fp16.min_loss_scale",
        "#8050",
        before="0 and negative numbers are taken; training fails at the first change of the scale",
        after="0 and negative numbers are refused if the loss scale is dynamic",
    ),
    _change(
        "warmup-steps-checked",
        "0.19.3",
        "scheduler.params.warmup_num_steps",
        "#8126",
        before="Numbers below 2 are taken for 2",
        after="0 and negative numbers are refused, and so are fractions, even 10.0",
    ),
    _change(
        "cycle-steps-checked",
        "0.19.4",
        "scheduler.params.cycle_first_step_size scheduler.params.lr_range_test_step_size",
        "#8166",
        before="0 is taken, and training fails with a division by zero",
        after="0 and negative numbers are refused",
    ),
    _change(
        "collective-timeout",
        "0.19.6",
        "",
        "#8253",
        before="A collective that does not end fails after 30 minutes",
        after="A collective that does not end fails after 10 minutes; the environment variable "
        "DEEPSPEED_TIMEOUT says how many",
    ),
)
"""Oldest first. The ids are unique and stay."""
