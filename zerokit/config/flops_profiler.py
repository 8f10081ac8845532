"""The section `flops_profiler`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from zerokit.config.base import NonNegative, NonNegativeFloat, NoText, Section, whole


class FlopsProfiler(Section):
    """Counts the operations of each module, and times them, in one step."""

    enabled: NoText = False
    """Profile. Also switches `wall_clock_breakdown` on. Default false."""

    profile_step: NonNegative = 1
    """The step to profile, from 0. Default 1; a later one leaves out the warm-up."""

    module_depth: Annotated[int, Field(ge=-1), BeforeValidator(whole)] = -1
    """Depth of nested modules to print; -1 for all. Default -1."""

    top_modules: NonNegative = 1
    """Modules to print at each depth. Default 1."""

    detailed: bool = True
    """Print every module. Default true."""

    output_file: str | None = None
    """File to write to. Default none: standard output."""

    recompute_fwd_factor: NonNegativeFloat = 0.0
    """Forward passes recomputed during the backward pass, 1 with activation checkpointing. Default 0."""
