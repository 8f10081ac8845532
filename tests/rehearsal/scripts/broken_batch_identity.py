# AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *
# gradient_acc_step * world_size 7 != 2 * 2 * 1 (the last figure is the world size)
"""The three batch sizes contradict each other at every world size: 7 is not 2 x 2 x world_size."""

from __future__ import annotations

from small_training import small_model, sound_config, start, step

engine = start(small_model(), sound_config(train_batch_size=7, gradient_accumulation_steps=2))
for _ in range(4):
    step(engine)
