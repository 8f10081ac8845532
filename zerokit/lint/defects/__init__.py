"""Defects of DeepSpeed that a ds_config brings about: one entry each, a file for each topic.

Only what DeepSpeed itself does wrong, and only what was found in the sources of the releases: where the
faulty and the mended lines first stand is in ``tools/deepspeed_surface/evidence.py``, under the ids here.
Those marked as measured were also brought about by training a small model with the releases on both sides.
"""

from zerokit.lint.defects import (
    accumulation,
    checkpoints_and_pipelines,
    half_precision,
    offload,
    optimizers,
    overlap,
    parameters_of_zero3,
    schedules,
    without_gpus,
    without_zero,
)
from zerokit.lint.defects.defect import Defect

KNOWN_DEFECTS: dict[str, Defect] = {
    defect.id: defect
    for topic in (
        overlap,
        without_gpus,
        accumulation,
        without_zero,
        half_precision,
        parameters_of_zero3,
        offload,
        optimizers,
        schedules,
        checkpoints_and_pipelines,
    )
    for defect in topic.DEFECTS
}
"""By id. The ids are unique and stay."""
