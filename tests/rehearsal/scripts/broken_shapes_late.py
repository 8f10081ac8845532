# RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x513 and 512x512)
"""The third batch, not the first, disagrees with the model."""

from __future__ import annotations

from small_training import FEATURES, small_model, sound_config, start, step

engine = start(small_model(), sound_config())
for number in range(4):
    step(engine, width=FEATURES + (number == 2))
