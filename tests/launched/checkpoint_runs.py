"""The runs of save_checkpoints.py."""

from __future__ import annotations

from typing import Any

ADAPTER = {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "task_type": "CAUSAL_LM"}
ZERO_KEYS = ("offload_optimizer", "offload_param", "sub_group_size", "round_robin_gradients")
"""Of a run, what stands in its zero_optimization."""
SAVED_AT = 2
NEXT_STEPS = range(SAVED_AT, 5)
RUNS: dict[str, dict[str, Any]] = {
    "stage0": {"stage": 0, "precision": "bf16"},
    "stage0-fp32": {"stage": 0, "precision": None, "tied": True},
    "stage1": {"stage": 1, "precision": "bf16", "tied": True},
    "stage1-fp32-gradients": {
        "stage": 1,
        "precision": "bf16",
        "data_types": {"grad_accum_dtype": "fp32"},
        "compared": False,
    },
    "stage2": {"stage": 2, "precision": "fp16", "frozen": True},
    "stage2-offload": {
        "stage": 2,
        "precision": None,
        "offload_optimizer": {"device": "cpu"},
        "round_robin_gradients": True,
        "goes_on": True,
    },
    "stage3": {"stage": 3, "precision": "bf16", "tied": True, "frozen": True, "sub_group_size": 1000},
    "stage3-offload": {
        "stage": 3,
        "precision": None,
        "offload_optimizer": {"device": "cpu"},
        "offload_param": {"device": "cpu"},
        "sub_group_size": 500,
        "goes_on": True,
    },
    "adapter": {"stage": 2, "precision": "bf16", "adapter": True, "without_frozen": True, "compared": False},
    "adapter3": {"stage": 3, "precision": "bf16", "adapter": True, "compared": False},
    "experts": {"stage": 1, "precision": "bf16", "experts": True, "compared": False},
    "pipeline": {"stage": 1, "precision": "bf16", "divided": "pipeline", "compared": False},
    "tensor-parallel": {"stage": 1, "precision": "bf16", "divided": "tensors", "compared": False},
}
"""By the name of the folder that a checkpoint is saved in; with the losses of `NEXT_STEPS` if it
`goes_on`; ranks that have each a part of the model, if it is `divided`; `compared` unless zero_to_fp32.py
cannot read it, or gives no model."""
