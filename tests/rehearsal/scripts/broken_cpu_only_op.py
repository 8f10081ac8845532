# On a GPU, NotImplementedError: Could not run 'broken::host_clip' with arguments from the 'CUDA' backend.
"""An op with a CPU kernel alone, called with a tensor that is on the GPU: the rehearsal must not run it."""

from __future__ import annotations

import torch
from small_training import FEATURES, small_model, sound_config, start


@torch.library.custom_op("broken::host_clip", mutates_args=(), device_types="cpu")
def host_clip(values: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values.float().numpy().clip(0, 1))


engine = start(small_model(), sound_config())
for _ in range(4):
    inputs = torch.rand(2, FEATURES, device=engine.device)
    engine.backward(engine(host_clip(inputs).bfloat16()).float().mean())
    engine.step()
