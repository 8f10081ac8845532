"""Decisions and the configs they make, with what is known of the run named beside them."""

from __future__ import annotations

from typing import Any

from zerokit.config import DeepSpeedConfig
from zerokit.resolving.run import Run
from zerokit.writing.build import build
from zerokit.writing.request import Decisions

_OF_THE_RUN = ("target", "num_gpus", "gpus_per_node", "gpu_memory_bytes", "model")


def decide(**facts: Any) -> Decisions:
    run = Run.of(**{name: facts.pop(name) for name in _OF_THE_RUN if name in facts})
    return Decisions(run=run, **facts)


def written(**facts: Any) -> DeepSpeedConfig:
    return build(decide(**facts)).config
