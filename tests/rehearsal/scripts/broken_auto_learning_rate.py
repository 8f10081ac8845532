# TypeError: '<=' not supported between instances of 'float' and 'str'
"""An "auto" that DeepSpeed does not look at when it reads the config, only when it makes the optimizer."""

from __future__ import annotations

from small_training import small_model, sound_config, start, step

optimizer = {"type": "Adam", "params": {"lr": "auto", "torch_adam": True}}
engine = start(small_model(), sound_config(optimizer=optimizer))
for _ in range(4):
    step(engine)
