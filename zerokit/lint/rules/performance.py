"""Settings that are legal and ruinous."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.lint.examples import zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject

rule = Rules("performance")


@rule("one-gpu", severity="warning", bad=zero(3), good=zero(0), given={"num_gpus": 1}, needs=("num_gpus",))
def one_gpu(subject: Subject) -> Iterator[Hit]:
    """ZeRO on a single GPU, with nothing offloaded

    ZeRO divides among GPUs. On one there is nothing to divide: stage 3 gathers and releases parameters that
    are all there, and pays for it in every module; stages 1 and 2 keep flat copies. Only offload makes ZeRO
    worth while on one GPU, and stage 2 will do unless parameters are offloaded.

    Source: `deepspeed/runtime/zero/parameter_offload.py`, whose hooks run whatever the number of ranks.
    """
    if subject.cluster.num_gpus != 1 or subject.stage not in (1, 2, 3) or subject.offload_param is not None:
        return
    offloaded = subject.offloads_optimizer
    if offloaded is None or subject.is_uncertain(ZERO, "offload_param"):
        return
    path = (ZERO, "stage")
    if subject.stage == 3:
        message = "stage 3 on one GPU has no parameters to divide, and none are offloaded"
        hint = "Use stage 2" if offloaded else "Use stage 0, or offload"
        yield Hit(path, message, hint, severity="info" if offloaded else None)
    elif not offloaded:
        message = f"stage {subject.stage} on one GPU has nothing to divide"
        yield Hit(path, message, "Use stage 0, or offload the optimizer", severity="info")


@rule(
    "autotuning-left-on",
    severity="warning",
    bad={**zero(2), "autotuning": {"enabled": True}},
    good={**zero(2), "autotuning": {"enabled": False}},
)
def autotuning_left_on(subject: Subject) -> Iterator[Hit]:
    """Autotuning, which ends every run after a few steps

    With `autotuning.enabled` the engine measures the steps from `start_profile_step` to `end_profile_step`
    (3 and 5 unless given), writes what it found, and calls `exit()`. That is for the trial runs of
    `deepspeed --autotuning`. Training started with the same file ends after 6 steps, without an error.

    Source: `_autotuning_exit` in `deepspeed/runtime/engine.py`.
    """
    path = ("autotuning", "enabled")
    if subject.is_set(*path, to=True):
        last = subject.value("autotuning", "end_profile_step")
        steps = f"after {last + 1} steps" if isinstance(last, int) else "after a few steps"
        message = f"'autotuning' ends every run {steps}"
        yield Hit(path, message, "Set it to false once tuning is done")
