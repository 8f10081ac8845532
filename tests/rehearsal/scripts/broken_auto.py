# TypeError: '>' not supported between instances of 'str' and 'int'
"""A ds_config written for transformers' Trainer, given to DeepSpeed itself, which knows no "auto"."""

from __future__ import annotations

from small_training import small_model, sound_config, start, step

engine = start(small_model(), sound_config(train_micro_batch_size_per_gpu="auto"))
for _ in range(4):
    step(engine)
