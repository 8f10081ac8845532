"""What DeepSpeed makes of the batch sizes that are given."""

from collections.abc import Mapping
from typing import Any

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"


def computed_batch_sizes(config: Mapping[str, Any], ranks: int) -> tuple[dict[str, int], str | None]:
    """The batch sizes that DeepSpeed computes, and why it refuses them, if it does.

    Floor divisions first, then the identity train = micro x steps x ranks, as
    `_set_batch_related_parameters` and `_batch_assertion` in `deepspeed/runtime/config.py`.

    Args:
        config: as DeepSpeed gets it; a value that is no number counts as absent.
        ranks: that see different samples.
    """
    given = {key: config[key] for key in (TRAIN, MICRO, STEPS) if isinstance(config.get(key), int | float)}
    train, micro, steps = given.get(TRAIN), given.get(MICRO), given.get(STEPS)
    computed: dict[str, Any] = {}
    if train is None and micro is None:
        return {}, f"{TRAIN} or {MICRO} must be given"
    if train is None:
        assert micro is not None
        computed = {STEPS: 1} if steps is None else {}
        computed[TRAIN] = micro * (steps or 1) * ranks
    elif micro is not None and steps is None:
        computed[STEPS] = train // micro // ranks
    elif micro is None:
        computed = {STEPS: 1} if steps is None else {}
        computed[MICRO] = train // ranks // (steps or 1)
    sizes = {**given, **computed}
    product = sizes[MICRO] * sizes[STEPS] * ranks
    if sizes[TRAIN] != product or not product:
        return computed, (
            f"{TRAIN} {sizes[TRAIN]:g} is not {MICRO} {sizes[MICRO]:g} x {STEPS} {sizes[STEPS]:g} x "
            f"{ranks} ranks = {product:g}"
        )
    return computed, None
