"""Questions that tests ask, about models that are counted in milliseconds."""

from __future__ import annotations

from functools import cache
from typing import Any

from zerokit.estimation import Question, Runs
from zerokit.hardware.cluster import Cluster
from zerokit.memory import Estimate, estimate
from zerokit.models import ModelShape, load_model_shape

SMALL = "qwen2.5-0.5b"


@cache
def shape(name: str = SMALL) -> ModelShape:
    return load_model_shape(name, allow_network=False, allow_torch=False)


def question(**options: Any) -> Question:
    """The small model on 8 GPUs under ZeRO-2, but for what `options` say."""
    given: dict[str, Any] = {"model": shape(), "cluster": Cluster(8), "micro_batch_size": 1, "seq_len": 512}
    if "ds_config" not in options:
        given["zero_stage"] = 2
    if options.keys() & {"num_gpus", "gpus_per_node"}:
        given["cluster"] = Cluster(options.pop("num_gpus", 8), options.pop("gpus_per_node", 8))
    return Question(**{**given, **options})


def answer(**options: Any) -> Estimate:
    return estimate(Runs().training_run(question(**options)))
