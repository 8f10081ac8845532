"""Why the errors found in published configs are true, each checked by hand, and why mistakes hurt.

An error that is not explained here is one that nobody has read yet: `reason_of` fails on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from zerokit.documents import dotted
from zerokit.findings import Finding

_FORBIDDEN = "`DeepSpeedConfig` raises ValidationError: extra inputs are not permitted"
_IGNORED = "DeepSpeed starts and never reads it"

_REASONS: tuple[tuple[str, str, str, str], ...] = (
    ("removed-key", "compression_training", "", "DeepSpeedConfigError: the compression library has been removed"),
    ("removed-key", "progressive_layer_drop", "", "DeepSpeedConfigError: Progressive Layer Dropping has been removed"),
    ("removed-key", "sparse_attention", "", "DeepSpeedConfigError: DeepSpeed Sparse Attention has been removed"),
    (
        "removed-key",
        "curriculum_learning",
        "",
        "DeepSpeedConfigError: the key at the top of the file has been removed",
    ),
    ("removed-key", "amp", "", "DeepSpeedConfigError: the integration of Apex AMP has been removed"),
    ("removed-key", "zero_optimization.mics_*", "", "DeepSpeedConfigError: MiCS has been removed"),
    (
        "bad-value",
        "optimizer.type",
        "was removed",
        "`deepspeed.initialize`: AssertionError: not a supported DeepSpeed Optimizer",
    ),
    (
        "bad-value",
        "communication_data_type",
        "bfp16",
        "`DeepSpeedConfig`: ValueError: Invalid communication_data_type. Got: bfp16",
    ),
    (
        "fp16-without-zero",
        "fp16.enabled",
        "2^16",
        "run with fp16 in stage 0: gradients of norm 0.911 reach the optimizer's step as 1.39e-5, divided by 65,536",
    ),
    (
        "fp16-without-zero",
        "fp16.enabled",
        "2^12",
        "run with fp16 in stage 0: gradients of norm 0.911 reach the optimizer's step as 2.22e-4, divided by 4,096",
    ),
    (
        "wrong-type",
        "fp16.min_loss_scale",
        "whole number",
        "`DeepSpeedConfig`: ValidationError: a valid integer is wanted, got a number with a fractional part",
    ),
    (
        "wrong-type",
        "zero_optimization.offload_*",
        "not false",
        "`DeepSpeedConfig`: ValidationError: a dictionary is wanted, got False",
    ),
    (
        "out-of-range",
        "scheduler.params.warmup_num_steps",
        "not 0",
        "`deepspeed.initialize`: ValueError: warmup_num_steps must be a positive integer, got 0",
    ),
    (
        "offload-param-stage",
        "zero_optimization.offload_param",
        "",
        "started in stage 2: the parameters are no ZeRO parameters and stay where they are; only the branch "
        "for stage 3 of `_configure_zero_optimizer` takes the section",
    ),
    (
        "nvme-stage",
        "zero_optimization.offload_optimizer.device",
        "",
        "started in stage 2: the optimizer says `cpu_offload = True`, and nothing is made at the NVMe path",
    ),
    (
        "zenflow-weights",
        "zero_optimization.zenflow",
        "stage 2",
        "started on two ranks: every matrix of the engine's module has its values in another order than "
        "before `deepspeed.initialize`, vectors are as they were",
    ),
    (
        "misplaced-key",
        "offload_optimizer",
        "",
        "`DeepSpeedConfig` parses the file to `offload_optimizer=None`: nothing is offloaded",
    ),
    ("misplaced-key", "bf16.*", "", _FORBIDDEN),
    ("misplaced-key", "zero_optimization.*", "", _FORBIDDEN),
    (
        "misplaced-key",
        "optimizer.weight_decay",
        "",
        f"{_IGNORED}: `optimizer_params` lacks it, and DeepSpeed's Adams have no weight decay by default",
    ),
    (
        "unknown-key",
        "optimizer.params.max_grad_norm",
        "",
        "`deepspeed.initialize`: ValueError: 'max_grad_norm' is not supported as an optimizer parameter",
    ),
    ("unknown-key", "max_grad_norm", "", f"{_IGNORED}: it clips at 1.0, its default, and not at 0.5"),
    (
        "unknown-key",
        "micro_batch_size_per_gpu",
        "",
        '`DeepSpeedConfig`, the other "auto" filled: AssertionError: a batch size needs to be provided',
    ),
    ("unknown-key", "fp16.*", "", _FORBIDDEN),
    ("unknown-key", "zero_optimization.*", "", _FORBIDDEN),
    (
        "unfilled-auto",
        "*",
        "",
        'its batch sizes are "auto", so that only the Trainer or accelerate can start it; with all filled in '
        "that they fill, accelerate's `deepspeed_config_process` raises ValueError for this key",
    ),
    (
        "batch-size",
        "train_batch_size",
        "",
        "AssertionError with every batch per GPU that was tried (1, 2, 4): 16 steps cannot give a batch of 4",
    ),
)
"""Rule, pattern of the key, words of the message, and what was seen or read of DeepSpeed 0.19.8."""

_OF_TEMPLATES: tuple[tuple[str, str], ...] = (
    ("removed-key", "a key that DeepSpeed refuses by its mere presence, filled in or not"),
    (
        "*",
        "words to be filled in: as it is, DeepSpeed reads them as texts and fails on those for the batch "
        "sizes (TypeError) or the switches (ValidationError)",
    ),
)

_WHY: Mapping[str, str] = {
    "fp16-without-zero": "Since 0.18.3 gradients are divided by a loss scale that they never had. SGD stands "
    "still; Adam hides it until small gradients vanish",
    "unknown-key": "At the top of the file nobody complains: what it was to change stays at its default",
    "deprecated-key": "It works until the release that drops it, and then the run does not start",
    "removed-key": "The run does not start with today's DeepSpeed, not even if the section says false",
    "fixed-train-batch-size": "The next cluster has another number of GPUs, and the run stops at once",
    "wall-clock-breakdown": "Every step waits for the GPU several times, just to print",
    "auto-beside-numbers": 'A plain DeepSpeed script drops the word: "auto" for bf16 trains in fp32',
    "bad-value": "The optimizer or format is not there (any more), which shows once all ranks have started",
    "stage12-key": "It looks like tuning, but stage 3 never reads it",
    "stage3-key": "It looks like tuning, but stages 1 and 2 never read it",
    "stage0-keys": "Without a stage nothing is sharded, and the whole section is decoration",
    "wrong-type": "The config is refused for one number, after the queue has been waited for",
    "misplaced-key": "The name is right and the place is not, so the default applies silently",
    "zenflow-weights": "The model that was loaded is another one before its first step, and nothing says so",
    "static-loss-scale": "It cannot adapt: one overflow too many, or gradients that vanish",
}


def reason_of(finding: Finding, *, template: bool) -> str:
    """Why an error is true, in one line of Markdown.

    Raises:
        LookupError: nobody has checked it.
    """
    path = dotted(finding.path)
    if template:
        return next(reason for rule, reason in _OF_TEMPLATES if fnmatchcase(finding.rule, rule))
    for rule, pattern, words, reason in _REASONS:
        if finding.rule == rule and fnmatchcase(path, pattern) and words in finding.message:
            return reason
    raise LookupError(f"nobody has checked that this is true: {path}: {finding.message} [{finding.rule}]")


def why_it_hurts(rule: str) -> str:
    """What a mistake that is made often costs.

    Raises:
        LookupError: it was not among the frequent ones so far.
    """
    if rule not in _WHY:
        raise LookupError(f"say in {__name__} why {rule} hurts: it is among the most frequent now")
    return _WHY[rule]
