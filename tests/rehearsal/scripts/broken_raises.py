# KeyError: 'best'
"""A mistake of the script's own, after its first step."""

from __future__ import annotations

from small_training import small_model, sound_config, start, step

engine = start(small_model(), sound_config())
step(engine)
history: dict[str, float] = {}
print("best so far", history["best"])
