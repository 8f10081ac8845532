"""Options of ZeRO that DeepSpeed refuses together, most of them only once the model is loaded."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.config.conditions import TORCH_FP32
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("zero")


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
