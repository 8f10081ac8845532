"""How fast a run trains, from when its steps end."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Speed:
    """Of some steps."""

    tokens_per_second: float
    """Over all ranks, without padding."""
    mfu: float | None
    """The share of what the cards could compute; None where either is not known."""


class Pace:
    """The time of steps, without evaluations and checkpoints, which lie between them.

    Args:
        operations_per_token: of the model (:func:`zerokit.training.operations.operations_per_token`).
        flops: that all cards together could do in a second; None where they are not known.
    """

    def __init__(self, operations_per_token: int | None = None, flops: float | None = None) -> None:
        self._operations, self._flops = operations_per_token, flops
        self._steps = array("f")
        self._since = self._seconds = 0.0
        self._tokens = 0

    def begin(self, now: float, tokens: int) -> None:
        """The first step begins; `tokens` were trained on before it."""
        self._since, self._tokens = now, tokens

    def step_ended(self, now: float) -> None:
        """A step has ended; the next begins."""
        self._steps.append(now - self._since)
        self._seconds += now - self._since
        self._since = now

    def paused(self, now: float) -> None:
        """What has gone on since the last step was no part of one."""
        self._since = now

    def since_last(self, tokens: int) -> Speed | None:
        """The speed since it was last asked for, at `tokens` in all; None if there were none."""
        new, seconds = tokens - self._tokens, self._seconds
        self._tokens, self._seconds = tokens, 0.0
        return self.speed(new, seconds) if new > 0 and seconds > 0 else None

    def speed(self, tokens: int, seconds: float) -> Speed:
        """Of so many tokens in so long."""
        rate = tokens / seconds
        known = self._operations is not None and self._flops is not None
        return Speed(rate, rate * self._operations / self._flops if known else None)  # type: ignore[operator]

    @property
    def step_seconds(self) -> float | None:
        """The median; the first step, which allocates and compiles, is none if there are others."""
        steps = self._steps[1:] or self._steps
        return median(steps) if steps else None

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(self._steps)
