# RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x513 and 512x512)
"""The data has more features than the model's first layer takes."""

from __future__ import annotations

from small_training import FEATURES, small_model, sound_config, start, step

engine = start(small_model(), sound_config())
for _ in range(4):
    step(engine, width=FEATURES + 1)
