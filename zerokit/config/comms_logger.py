"""The section `comms_logger`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zerokit.config.base import Reader, Section


class CommsLogger(Section):
    """Logs collectives: how many, how large, how fast."""

    read_by: ClassVar[Reader] = "model"

    enabled: bool = False
    """Log. Default false."""

    verbose: bool = False
    """Print each call as it is made. Default false."""

    prof_all: bool = True
    """Log every kind. Default true."""

    prof_ops: list[str] = Field(default_factory=list)
    """Kinds to log when `prof_all` is false, such as `all_gather`. Default none."""

    debug: bool = False
    """Add the calling function's name to each. Default false."""
