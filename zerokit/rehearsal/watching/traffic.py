"""The collectives of a rank, for the report."""

from __future__ import annotations

from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.recording import Collective
from zerokit.rehearsal.watching.watcher import StepEnd, Watcher
from zerokit.reporting.phases import RUN_PHASES


class Traffic(Watcher):
    """The collectives of this rank, in order."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.calls: list[Collective] = []
        self._step = 0

    def add(self, name: str, size: int, group_size: int, *, is_of_rows: bool = False) -> None:
        """Record one call.

        Args:
            name: the collective, as torch.distributed names it.
            size: bytes of the whole tensor: what is gathered in all, scattered from, reduced or broadcast
                (the convention of nccl-tests, so that bus bandwidth follows from it).
            group_size: number of ranks that take part.
            is_of_rows: whether a tensor of it has several rows of several elements.
        """
        events = self._backend.event_count()
        phase = RUN_PHASES.index(self._backend.phase)
        self.calls.append(Collective(name, phase, self._step, size, group_size, events, is_of_rows))

    def take_back(self, place: int) -> list[Collective]:
        """The calls from that place on, which were not made after all."""
        taken, self.calls[place:] = self.calls[place:], []
        return taken

    def on_step_end(self, end: StepEnd) -> None:
        self._step = end.step
        self.calls[end.calls :] = [call._replace(step=end.step) for call in self.calls[end.calls :]]
