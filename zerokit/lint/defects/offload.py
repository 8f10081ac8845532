"""Defects of offload to the host and to NVMe, and of what builds on it."""

from zerokit.lint.defect_conditions import ON_NVME, on, present, stage, written
from zerokit.lint.defects.defect import Defect

_PINNED = "zero_optimization.offload_optimizer.pin_memory"
_SUPER = "zero_optimization.offload_optimizer.super_offload"
_ZENFLOW = "zero_optimization.zenflow"

ZENFLOW_WEIGHTS = Defect(
    id="zenflow-scrambled",
    releases="0.19.7 ..",
    harm="wrong results",
    summary="The values of every matrix are put in another order before the first step",
    rule="zenflow-weights",
    instead="remove the section",
    source="deepspeed/runtime/zero/stage_1_and_2.py, _update_model_bit16_weights; measured",
)

DEFECTS = (
    ZENFLOW_WEIGHTS,
    Defect(
        id="pin-memory-ignored",
        releases="0.14.1 .. 0.18.3",
        harm="memory",
        summary="Master weights are pinned all the same",
        when=stage(1, 2) & written(_PINNED, False),
        at=_PINNED,
        source="#7689",
    ),
    Defect(
        id="cpu-lion-refused",
        releases=".. 0.17.6",
        harm="crash",
        summary="DeepSpeed refuses its own Lion for the CPU",
        beyond="a Lion that the script makes, with offload_optimizer, unless zero_force_ds_cpu_optimizer is "
        "false",
        source="#7524, #7531",
    ),
    Defect(
        id="super-offload-start",
        releases="0.18.0 .. 0.18.4",
        harm="crash",
        summary="Building the optimizer fails: 'param_names' is not taken",
        when=stage(3) & on(_SUPER),
        at=_SUPER,
        instead="remove the key",
        source="#7627, #7715",
    ),
    Defect(
        id="super-offload-groups",
        releases="0.18.0 .. 0.18.9",
        harm="wrong results",
        summary="The settings of parameter groups are lost, such as no weight decay on biases",
        when=stage(3) & on(_SUPER),
        beyond="several parameter groups",
        at=_SUPER,
        instead="remove the key",
        sometimes=True,
        source="#7905, #7906",
    ),
    Defect(
        id="nvme-open-files",
        releases="0.17.1 .. 0.19.3",
        harm="crash",
        summary="Files stay open after each transfer, until the process may open no more",
        when=stage(3) & ON_NVME,
        sometimes=True,
        source="#8003, #8075",
    ),
    Defect(
        id="nvme-hang",
        releases=".. 0.18.4",
        harm="stuck",
        summary="Waiting for a transfer holds Python's lock, and training stands still once in a while",
        when=stage(3) & ON_NVME,
        sometimes=True,
        source="#7727",
    ),
    Defect(
        id="zenflow-backward",
        releases="0.18.3 .. 0.19.2",
        harm="wrong results",
        summary="What ZenFlow does before each backward pass is left out, such as choosing gradients anew",
        when=stage(1, 2) & present(_ZENFLOW),
        at=_ZENFLOW,
        instead="remove the section",
        sometimes=True,
        source="#7759, #7771, introduced by #7665",
    ),
)
