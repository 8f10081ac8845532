"""What is wrong between the sections of a ds_config, most of which DeepSpeed passes over in silence.

All functions are pure: no files, network, environment or devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from zerokit.config.auto import FILLED_BY, TARGETS, Target, autos
from zerokit.config.base import is_comment
from zerokit.config.batch import check_batch_sizes
from zerokit.config.load import check_ds_config
from zerokit.config.optimizer import TORCH_SCHEDULERS
from zerokit.config.places import as_written
from zerokit.config.problem import Problem, Severity
from zerokit.config.root import DeepSpeedConfig
from zerokit.config.zero import STAGE_3_KEYS, ZeroOptimization
from zerokit.documents import Document, KeyPath, dotted

_ZERO = "zero_optimization"

_STAGE_RULES = frozenset(
    {
        "offload-without-zero",
        "offload-param-stage",
        "nvme-stage",
        "stage3-key",
        "zero-option",
        "precision-option",
    }
)
"""Rules that speak of the stage; they say nothing while a mistake may have hidden the key `stage`."""


_ABSENCE_RULES = frozenset({"no-batch-size", "lost-argument"})
"""Rules about absent keys; they say nothing while a mistake at the top may have hidden the key."""


def check_document(
    document: Document, *, target: Target | None = None, num_gpus: int | None = None
) -> list[Problem]:
    """Everything that is wrong with a ds_config, within and between its sections, in the order of its lines.

    Args:
        document: as read by :func:`zerokit.documents.read_document`.
        target: who hands the config to DeepSpeed; None accepts "auto" wherever any target does.
        num_gpus: how many GPUs the run has, for the batch sizes.
    """
    problems = check_ds_config(document)
    rest = _without(document.data, problems)
    config = _validated(rest)
    if config is not None:
        between = cross_check(config, target=target, num_gpus=num_gpus, written=rest)
        if problems and "stage" not in config.zero_optimization.model_fields_set:
            between = [problem for problem in between if problem.rule not in _STAGE_RULES]
        if any(len(problem.path) == 1 for problem in problems):
            between = [problem for problem in between if problem.rule not in _ABSENCE_RULES]
        for problem in between:
            path = as_written(problem.path, rest)
            problems.append(replace(problem, path=path, line=document.line(path)))
    return sorted(problems, key=lambda problem: problem.line or 0)


def cross_check(
    config: DeepSpeedConfig,
    *,
    target: Target | None = None,
    num_gpus: int | None = None,
    written: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """What is wrong between the sections of a valid config.

    Args:
        config: as loaded.
        target: who hands the config to DeepSpeed; None accepts "auto" wherever any target does.
        num_gpus: how many GPUs the run has, for the batch sizes.
        written: the data that `config` was loaded from, if its spelling may differ from ``config.dump()``.
    """
    written = config.dump() if written is None else written
    return [
        *_check_autos(written, target),
        *_check_comments(written),
        *check_batch_sizes(config, num_gpus),
        *_check_batch_given(config, target),
        *_check_lost_arguments(config, target),
        *_check_precision(config),
        *_check_offload(config.zero_optimization),
        *_check_nvme(config.zero_optimization),
        *_check_stage_keys(config.zero_optimization),
        *_check_zero_options(config),
        *_check_deprecated(config, written),
        *_check_scheduler(config),
    ]


def _check_autos(written: Mapping[str, Any], target: Target | None) -> Iterator[Problem]:
    targets = TARGETS if target is None else (target,)
    filled = frozenset[str]().union(*(FILLED_BY[name] for name in targets))
    for path in autos(written):
        if dotted(path) in filled:
            continue
        who = {None: "nobody fills", "deepspeed": "DeepSpeed does not fill"}.get(
            target, f"{target} does not fill"
        )
        hint = "Write a value, or remove the key for DeepSpeed's default"
        if dotted(path) in FILLED_BY["trainer"]:
            hint += "; the Trainer would fill it"
        yield Problem(path, f"'{path[-1]}' is \"auto\", which {who} in here", hint, rule="unfilled-auto")


_STRICT_SECTIONS = (
    "zero_optimization",
    "fp16",
    "bf16",
    "bfloat16",
    "tensorboard",
    "wandb",
    "csv_monitor",
    "comet",
    "comms_logger",
    "compile",
    "hybrid_engine",
    "tensor_parallel",
    "weight_quantization",
)
"""Sections that DeepSpeed parses with unknown keys forbidden, comments among them."""


def _check_comments(written: Mapping[str, Any]) -> Iterator[Problem]:
    def walk(data: Any, path: KeyPath) -> Iterator[KeyPath]:
        if isinstance(data, Mapping):
            for key, value in data.items():
                if is_comment(key):
                    yield (*path, key)
                else:
                    yield from walk(value, (*path, key))

    for path in walk(written, ()):
        strict = path[0] in _STRICT_SECTIONS or path[:2] in (("optimizer", "params"), ("scheduler", "params"))
        if len(path) > 1 and strict:
            message = f"DeepSpeed itself refuses the comment '{path[-1]}' inside '{dotted(path[:-1])}'"
            hint = "Move it to the top of the file, where DeepSpeed ignores it"
            yield Problem(path, message, hint, severity="warning", rule="refused-comment")


def _check_batch_given(config: DeepSpeedConfig, target: Target | None) -> Iterator[Problem]:
    if config.train_batch_size is None and config.train_micro_batch_size_per_gpu is None:
        value = 1 if target == "deepspeed" else '"auto"'
        yield Problem(
            (),
            "no batch size is given, so DeepSpeed fails when it starts unless the script adds one",
            f'Add "train_micro_batch_size_per_gpu": {value}',
            severity="warning" if target is None else "error",
            rule="no-batch-size",
        )


def _check_lost_arguments(config: DeepSpeedConfig, target: Target | None) -> Iterator[Problem]:
    """The Trainer neither fills nor compares a key that is absent, and says nothing."""
    if target != "trainer":
        return
    for key, argument, used in (
        ("gradient_accumulation_steps", "gradient_accumulation_steps", "1"),
        ("gradient_clipping", "max_grad_norm", "1.0"),
    ):
        if key not in config.model_fields_set and (
            key != "gradient_accumulation_steps" or config.train_batch_size is None
        ):
            message = f"'{key}' is absent, so DeepSpeed uses {used} whatever the Trainer's {argument} says"
            yield Problem((), message, f'Add "{key}": "auto"', severity="warning", rule="lost-argument")


def _check_precision(config: DeepSpeedConfig) -> Iterator[Problem]:
    bf16, fp16, stage = config.bf16, config.fp16, config.zero_optimization.stage
    if bf16 is None:
        return
    if bf16.enabled is True and fp16.enabled is True:
        yield Problem(
            ("fp16", "enabled"), "bf16 and fp16 are both enabled", "Disable one of them", rule="bf16-and-fp16"
        )
    for path, needed in (
        (("fp16", "fp16_master_weights_and_grads"), fp16.fp16_master_weights_and_grads),
        (("bf16", "bf16_master_weights_and_grads"), bf16.bf16_master_weights_and_grads),
        (("bf16", "bf16_optimizer_states"), bf16.bf16_optimizer_states),
    ):
        if needed and stage == 0:
            message = f"'{path[-1]}' needs ZeRO stage 1, 2 or 3, not 0"
            yield Problem(path, message, "Raise the stage or remove the key", rule="precision-option")
    if fp16.enabled is not False and fp16.loss_scale == 0:
        for key in ("loss_scale_window", "min_loss_scale"):
            if getattr(fp16, key) < 1:
                message = f"'{key}' must be at least 1 where fp16 adapts the loss scale"
                severity: Severity = "error" if fp16.enabled is True else "warning"
                yield Problem(
                    ("fp16", key), message, "Remove the key", severity=severity, rule="out-of-range"
                )
    if bf16.bf16_optimizer_states and not bf16.bf16_master_weights_and_grads:
        message = "'bf16_optimizer_states' needs 'bf16_master_weights_and_grads'"
        yield Problem(
            ("bf16", "bf16_optimizer_states"), message, "Enable both or none", rule="precision-option"
        )


def _devices(zero: ZeroOptimization) -> Iterator[tuple[str, str, str | None]]:
    """The offload sections in use: their key, device and NVMe path."""
    for key, section, deprecated in (
        ("offload_optimizer", zero.offload_optimizer, "cpu_offload"),
        ("offload_param", zero.offload_param, "cpu_offload_param"),
    ):
        if section is not None and section.device in ("cpu", "nvme"):
            yield key, section.device, section.nvme_path
        elif getattr(zero, deprecated):
            yield deprecated, "cpu", None


def _check_offload(zero: ZeroOptimization) -> Iterator[Problem]:
    for key, _, _ in _devices(zero):
        path = (_ZERO, key)
        if zero.stage == 0:
            message = f"'{key}' has no ZeRO stage to act in: the stage is 0"
            hint = f"Use stage {'3' if 'param' in key else '1, 2 or 3'}, or remove '{key}'"
            yield Problem(path, message, hint, rule="offload-without-zero")
        elif "param" in key and zero.stage in (1, 2):
            message = f"'{key}' needs ZeRO stage 3; in stage {zero.stage} DeepSpeed ignores it in silence"
            yield Problem(path, message, f"Use stage 3, or remove '{key}'", rule="offload-param-stage")


def _check_nvme(zero: ZeroOptimization) -> Iterator[Problem]:
    for key, device, nvme_path in _devices(zero):
        if device != "nvme":
            continue
        if zero.stage in (1, 2) and key == "offload_optimizer":
            message = (
                f"NVMe offload needs ZeRO stage 3; in stage {zero.stage} DeepSpeed uses the CPU in silence"
            )
            hint = 'Use stage 3, or the device "cpu"'
            yield Problem((_ZERO, key, "device"), message, hint, rule="nvme-stage")
        if nvme_path is None:
            message = f"'{key}' goes to NVMe, but 'nvme_path' is not given"
            hint = 'Add "nvme_path": the folder to write to'
            yield Problem((_ZERO, key, "device"), message, hint, rule="nvme-path")


def _check_stage_keys(zero: ZeroOptimization) -> Iterator[Problem]:
    if zero.stage not in (0, 1, 2):
        return
    for key in sorted(zero.model_fields_set & STAGE_3_KEYS):
        message = f"'{key}' acts in ZeRO stage 3 only; the stage is {zero.stage}"
        yield Problem(
            (_ZERO, key), message, "Use stage 3, or remove the key", severity="warning", rule="stage3-key"
        )


def _check_zero_options(config: DeepSpeedConfig) -> Iterator[Problem]:
    """Combinations that DeepSpeed itself asserts (`zero/config.py` and `_do_error_check` in `config.py`)."""
    zero = config.zero_optimization
    if not zero.compute_grad_norm and zero.stage in (0, 3):
        message = f"'compute_grad_norm' can be false in ZeRO stages 1 and 2 only; the stage is {zero.stage}"
        yield Problem((_ZERO, "compute_grad_norm"), message, "Remove the key", rule="zero-option")
    offload = zero.offload_optimizer
    if offload is not None and offload.ratio < 1 and zero.stage in (0, 1, 2):
        message = f"'ratio' below 1 needs ZeRO stage 3, not {zero.stage}"
        yield Problem(
            (_ZERO, "offload_optimizer", "ratio"),
            message,
            "Use stage 3, or remove the key",
            rule="zero-option",
        )
    if config.gradient_allreduce_op == "sum" and (zero.stage == 3 or zero.zenflow is not None):
        other = "ZeRO stage 3" if zero.stage == 3 else "ZenFlow"
        message = f"'gradient_allreduce_op' cannot be \"sum\" with {other}"
        yield Problem(("gradient_allreduce_op",), message, 'Use "mean"', rule="zero-option")


_REPLACED = {
    "cpu_offload": "offload_optimizer",
    "cpu_offload_param": "offload_param",
    "stage3_gather_fp16_weights_on_model_save": "stage3_gather_16bit_weights_on_model_save",
}


def _check_deprecated(config: DeepSpeedConfig, written: Mapping[str, Any]) -> Iterator[Problem]:
    zero = config.zero_optimization
    for key in sorted(zero.model_fields_set & {*_REPLACED, "cpu_offload_use_pin_memory"}):
        new = _REPLACED.get(key)
        if new in zero.model_fields_set:
            message = f"'{key}' is the old form of '{new}', and DeepSpeed refuses both together"
            yield Problem((_ZERO, key), message, f"Remove '{key}'", rule="duplicate-key")
            continue
        hint = {
            "cpu_offload": 'Write "offload_optimizer": {"device": "cpu"}',
            "cpu_offload_param": 'Write "offload_param": {"device": "cpu"}',
        }.get(key, f"Write '{new or 'pin_memory'}'{'' if new else ' in the offload sections'}")
        yield Problem((_ZERO, key), f"'{key}' is deprecated", hint, severity="warning", rule="deprecated-key")
    if isinstance(written.get(_ZERO), bool):
        message = f"'{_ZERO}' as true or false is deprecated"
        hint = f'Write {{"stage": {zero.stage}}}'
        yield Problem((_ZERO,), message, hint, severity="warning", rule="deprecated-key")
    if "bfloat16" in written:
        message = "'bfloat16' is the old name of 'bf16'; the Trainer and accelerate do not read it"
        yield Problem(("bf16",), message, "Call it 'bf16'", severity="warning", rule="deprecated-key")


def _check_scheduler(config: DeepSpeedConfig) -> Iterator[Problem]:
    scheduler = config.scheduler
    if scheduler is None or scheduler.type not in TORCH_SCHEDULERS:
        return
    wrapped = config.zero_optimization.stage in (1, 2, 3) or config.fp16.enabled is True
    if wrapped or (config.bf16 is not None and config.bf16.enabled is True):
        message = f"PyTorch's '{scheduler.type}' cannot drive the optimizers that ZeRO, bf16 and fp16 wrap"
        hint = "Use one of DeepSpeed's schedules, or build the schedule in the script"
        yield Problem(("scheduler", "type"), message, hint, rule="torch-scheduler")


def _without(data: Any, problems: list[Problem]) -> Any:
    """A copy of `data` without the keys that `problems` speak of, so that the rest can still be checked."""
    doomed = {_key_to_drop(problem) for problem in problems}

    def copied(part: Any, path: KeyPath) -> Any:
        if not isinstance(part, Mapping):
            return part
        return {key: copied(value, (*path, key)) for key, value in part.items() if (*path, key) not in doomed}

    return None if () in doomed else copied(data, ())


def _key_to_drop(problem: Problem) -> KeyPath:
    path = problem.path[:-1] if problem.rule == "missing-key" else problem.path
    # A list is dropped as a whole.
    end = next((index for index, key in enumerate(path) if isinstance(key, int)), len(path))
    return path[:end]


def _validated(data: Any) -> DeepSpeedConfig | None:
    """The config, or None if it is still not valid without its faulty keys."""
    for _ in range(3):  # dropping a faulty 'type' makes its section faulty in turn
        try:
            return DeepSpeedConfig.model_validate(data)
        except ValidationError:
            data = _without(data, check_ds_config(Document(data, "")))
    return None
