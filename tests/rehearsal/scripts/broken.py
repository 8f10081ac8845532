"""Trains four steps with one mistake: ``broken.py MISTAKE``; what it raises on a cluster stands with each."""

from __future__ import annotations

import sys

import torch
from small_training import FEATURES, small_model, sound_config, start, step

MISTAKE = sys.argv[1]
CONFIGS = {
    # TypeError: '>' not supported between instances of 'str' and 'int'. DeepSpeed itself knows no "auto".
    "auto": {"train_micro_batch_size_per_gpu": "auto"},
    # AssertionError: 7 is not 2 x 2 x world_size
    "batch_identity": {"train_batch_size": 7, "gradient_accumulation_steps": 2},
}


# On a GPU, NotImplementedError: Could not run 'broken::host_clip' with arguments from the 'CUDA' backend.
@torch.library.custom_op("broken::host_clip", mutates_args=(), device_types="cpu")
def host_clip(values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.float().numpy().clip(0, 1))


# The same of an op that is declared, as a package does before it loads its kernels, and never given any.
library = torch.library.Library("broken", "FRAGMENT")
library.define("fused_norm(Tensor values, float epsilon) -> Tensor")

engine = start(small_model(), sound_config(**CONFIGS.get(MISTAKE, {})))
for number in range(4):
    if MISTAKE in ("cpu_only_op", "undefined_kernel"):
        inputs = torch.rand(2, FEATURES, device=engine.device, dtype=torch.bfloat16)
        broken = host_clip(inputs) if MISTAKE == "cpu_only_op" else torch.ops.broken.fused_norm(inputs, 1e-5)
        engine.backward(engine(broken.bfloat16()).float().mean())
        engine.step()
    else:
        # RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x513 and 512x512)
        step(engine, width=FEATURES + (MISTAKE == "shapes_late" and number == 2))
