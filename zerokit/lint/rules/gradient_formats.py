"""Number formats of gradients, sums and what is sent."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.findings import Remove
from zerokit.lint.examples import ONE_SAMPLE
from zerokit.lint.number_formats import format_at, precision
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.releases.versions import known_at

rule = Rules("precision")
_BF16 = {**ONE_SAMPLE, "bf16": {"enabled": True}}
_STAGE_2 = {ZERO: {"stage": 2}}
_TYPES = "data_types"


@rule(
    "accumulation-dtype",
    stops=True,
    bad={**_BF16, _TYPES: {"grad_accum_dtype": "fp32"}, ZERO: {"stage": 0}},
    good={**_BF16, _TYPES: {"grad_accum_dtype": "fp32"}, ZERO: {"stage": 1}},
)
def accumulation_dtype(subject: Subject) -> Iterator[Hit]:
    """An accumulation format that the stage does not support, or that loses gradients

    `data_types.grad_accum_dtype` says in what gradients are summed over micro-batches. In stage 0 DeepSpeed
    refuses any format but the model's own. In the other stages it takes all, sensible or not: sums in fp16
    overflow beyond 65,504, for which bf16 and fp32 models have no loss scaling, and sums in 16 bits under an
    fp32 model round each gradient away from what the model computed.

    Leave the key out, or write "fp32": better sums, for 4 bytes per element of the gradients that a GPU
    keeps.

    Source: `_do_optimizer_sanity_check` in `deepspeed/runtime/engine.py`; `gradient_accumulation_dtype` in
    `deepspeed/runtime/zero/stage_1_and_2.py` and `stage3.py`.
    """
    path = (_TYPES, "grad_accum_dtype")
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted in (None, "int8") or model is None or wanted == model:
        return
    if _sums_in_fp32_without_zero(subject):
        return
    if subject.stage == 0:
        message = f"stage 0 cannot sum the gradients of a model in {model} in {wanted}"
        yield Hit(path, message, "Remove the key, or raise the stage")
    elif subject.stage is not None and (model == "fp32" or (model == "bf16" and wanted == "fp16")):
        why = "overflows beyond 65,504" if wanted == "fp16" else "rounds what fp32 computed"
        message = f"gradients of a model in {model} are summed in {wanted}, which {why}"
        yield Hit(path, message, 'Remove the key, or write "fp32"', severity="warning")


def _sums_in_fp32_without_zero(subject: Subject) -> bool:
    """Whether the release is so old that it has an optimizer of its own for bf16 in stage 0."""
    release = subject.run.deepspeed_version
    if release is None:
        return False
    from zerokit.lint.defects import CHANGES

    change = CHANGES["bf16-without-zero"]
    return release < change.since and change.when.holds(subject)


@rule(
    "param-dtype",
    stops=True,
    bad={**_BF16, _TYPES: {"param_dtype": "fp32"}, **_STAGE_2},
    good={**_BF16, _TYPES: {"param_dtype": "bf16"}, **_STAGE_2},
)
def param_dtype(subject: Subject) -> Iterator[Hit]:
    """A parameter format that differs from the enabled precision

    Parameters are in the format of `bf16` or `fp16`, or in fp32 if both are off. `data_types.param_dtype`
    changes nothing: DeepSpeed asserts that it says the same, once the model is loaded.

    Leave it out.

    Source: `_assert_valid_mixed_precision_config` in `deepspeed/runtime/engine.py`.
    """
    path = (_TYPES, "param_dtype")
    if subject.run.deepspeed_version is not None and not known_at(path, subject.run.deepspeed_version):
        return
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted not in (None, "int8") and model is not None and wanted != model:
        message = f"'param_dtype' is {wanted}, but the model trains in {model}"
        yield Hit(path, message, "Remove the key, or switch that format on")


@rule(
    "communication-dtype",
    severity="warning",
    bad={**_BF16, "communication_data_type": "fp16", **_STAGE_2},
    good={**_BF16, "communication_data_type": "fp32", **_STAGE_2},
)
def communication_dtype(subject: Subject) -> Iterator[Hit]:
    """A communication format that is too small for the gradients, or not used

    Gradients are reduced in the model's format unless `communication_data_type` names another. In fp16, sums
    over ranks overflow beyond 65,504 and small gradients vanish; only a model that itself trains in fp16 has
    loss scaling against that.

    The key does nothing under sequence parallelism, where `seq_parallel_communication_data_type` takes its
    place, nor in ZeRO with `torch_autocast`, which reduces each gradient in the format of its module.

    Leave the key out, or write "fp32".

    Source: `communication_data_type` and `_configure_distributed_model` in `deepspeed/runtime/engine.py`;
    `comm_dtypes` in `deepspeed/runtime/zero/stage_1_and_2.py` and `stage3.py`.
    """
    path = ("communication_data_type",)
    wanted, model = format_at(subject, *path), precision(subject)
    if wanted is None:
        return
    if path in subject.unused:
        message = f"'communication_data_type' {subject.unused[path].reason}"
        yield Hit(path, message, "Remove the key", (Remove(path),))
    elif wanted == "fp16" and model in ("bf16", "fp32"):
        message = f"gradients of a model in {model} are sent in fp16, which ends at 65,504"
        yield Hit(path, message, 'Remove the key, or write "fp32"')
