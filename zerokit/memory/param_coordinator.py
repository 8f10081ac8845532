"""Stage 3's gathering of parameters: fetch, prefetch and release in the order of module calls.

Source: deepspeed/runtime/zero/partitioned_param_coordinator.py, which records the order of calls in the first
forward and backward pass and follows it afterwards; partition_parameters.py all_gather_coalesced for sizes of
buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zerokit.memory.layout import Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.settings import Settings
from zerokit.memory.term import kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
GATHERED = KINDS.GATHERED
KEPT_BY_AUTOGRAD = KINDS.KEPT_BY_AUTOGRAD
GATHER_BUFFERS = KINDS.GATHER_BUFFERS


def secondary_shard(parameter: Parameter, settings: Settings) -> int:
    """Elements of one rank's secondary shard: the padded parameter, divided among the ranks of a node."""
    world = settings.zero_ranks
    return ceil_div(parameter.elements, world * parameter.replicas) * world // settings.hpz_partition


@dataclass(frozen=True)
class Submodule:
    """One call that DeepSpeed fetches at once, forward or backward."""

    module: str
    parameters: tuple[Parameter, ...]
    is_leaf: bool = False
    """Its parameters are those of the modules within it."""
    within: tuple[Parameter, ...] = ()
    """Parameters of modules within it that are fetched by themselves."""


class _Walk:
    """The calls that use each parameter, and the elements used before each call."""

    def __init__(self, calls: Iterable[Sequence[Parameter]]) -> None:
        self._before = [0]
        self._uses: dict[Parameter, list[int]] = {}
        for place, parameters in enumerate(calls):
            elements = self._before[-1]
            for one in parameters:
                elements += one.elements
                self._uses.setdefault(one, []).append(place)
            self._before.append(elements)

    def distance(self, one: Parameter, here: int) -> int | None:
        """Elements used from the call at `here` until the next use of `one`; None if there is none."""
        uses = self._uses[one]
        following = bisect_left(uses, here)
        if following == len(uses):
            return None
        return self._before[uses[following]] - self._before[here]


class CallOrder:
    """The calls of a micro-batch in order, and when each parameter is used."""

    def __init__(self, calls: Sequence[Submodule]) -> None:
        self.count = len(calls)
        self.own = _Walk(() if call.is_leaf else call.parameters for call in calls)
        self.recursive = _Walk((*call.parameters, *call.within) for call in calls)
        self.trace = [(one, place) for place, call in enumerate(calls) for one in call.parameters]


class Gather:
    """Parameters that are gathered together."""

    def __init__(self, parameters: Sequence[Parameter], buffer: int) -> None:
        self.parameters = parameters
        self.buffer = buffer
        """Elements of the buffer in which they arrive."""
        self.waiting = len(parameters)
        self.arrived = False


class Coordinator:
    """The parameters that are gathered at each moment.

    Args:
        calls: in order; empty if not recorded yet: nothing is prefetched or kept for its next use.
    """

    def __init__(self, timeline: Timeline, settings: Settings, calls: CallOrder | Sequence[Submodule]) -> None:
        self._timeline, self._settings, self._e = timeline, settings, settings.parameter_bytes
        self._buffers = GATHER_BUFFERS if settings.gathered_bytes == self._e else KINDS.QUANTIZED_BUFFERS
        self._order = calls if isinstance(calls, CallOrder) else CallOrder(calls)
        self._whole = set[Parameter]()
        self._flying: dict[Parameter, Gather] = {}
        self._active = defaultdict[Parameter, set[str]](set)
        self._saved = set[Parameter]()
        self._outlived: dict[Parameter, int] = {}
        self._secondary = set[Parameter]()
        """With a shard for the ranks of the node. A release makes it, the optimizer's step drops it."""
        self._reset_trace()

    def persists(self, parameter: Parameter) -> bool:
        """Small parameters stay gathered: parameter_offload.py mark_persistent_parameters."""
        return parameter.elements <= self._settings.persistence_threshold

    def _reset_trace(self) -> None:
        self._next = 0
        """The place in the trace from which parameters are prefetched."""
        self._latest: dict[Parameter, int] = {}
        self._place = 0
        self._available = 0

    def reset(self) -> None:
        """`reset_step`, at the start of a forward pass."""
        for gather in dict.fromkeys(self._flying.values()):
            self._arrive(gather)
            self._timeline.free(self._buffers, self._settings.gathered_bytes, gather.buffer)
        for one in [one for gather in self._flying.values() for one in gather.parameters]:
            self._release(one)
        self._flying.clear()
        self._active.clear()
        self._reset_trace()

    @property
    def state(self) -> object:
        """All that the next pass depends on, after `reset`."""
        return self._whole.copy(), self._saved.copy(), self._outlived.copy(), self._secondary.copy()

    def fetch(self, call: Submodule) -> None:
        """`fetch_sub_module`."""
        if call.parameters and (missing := [one for one in call.parameters if self._is_missing(one)]):
            self._gather(missing)
        for one in call.parameters:
            self._active[one].add(call.module)
            if (gather := self._flying.pop(one, None)) is not None:
                self._arrive(gather)
                gather.waiting -= 1
                if gather.waiting == 0:
                    self._timeline.free(self._buffers, self._settings.gathered_bytes, gather.buffer)
        if self._next < len(self._order.trace):
            self._prefetch(call)
        self._place += 1

    def _is_missing(self, one: Parameter) -> bool:
        return one not in self._whole and one not in self._flying and not self.persists(one)

    def _gather(self, parameters: Sequence[Parameter]) -> None:
        """`__all_gather_params`: those with a secondary shard among the ranks of a node."""
        if self._secondary:
            near = [one for one in parameters if one in self._secondary]
            self._gather_among(near, self._settings.hpz_partition)
            parameters = [one for one in parameters if one not in self._secondary]
        for replicas in sorted({one.replicas for one in parameters}):
            apart = [one for one in parameters if one.replicas == replicas]
            self._gather_among(apart, self._settings.zero_ranks * replicas)

    def _gather_among(self, parameters: Sequence[Parameter], ranks: int) -> None:
        """A single parameter is gathered in place; several, or quantized ones, are copied out of a buffer."""
        if not parameters:
            return
        world, e = self._settings.zero_ranks * parameters[0].replicas, self._e
        elements = sum(one.elements for one in parameters)
        self._available += elements
        shards = sum(ceil_div(one.elements, world) for one in parameters) * world // ranks
        offloaded = self._settings.offload_param != "none"
        if world == 1 or (len(parameters) == 1 and self._settings.gathered_bytes == e):
            self._timeline.hold(GATHERED, e, elements if world > 1 or offloaded else 0)
            gather = Gather(parameters, 0)
            gather.arrived = True
            self._whole.update(parameters)
        else:
            gather = Gather(parameters, shards * ranks)
            self._timeline.hold(self._buffers, self._settings.gathered_bytes, gather.buffer)
        if offloaded and world > 1:
            self._timeline.spike(KINDS.COPIES_TO_GPU, e, shards)
        for one in parameters:
            self._flying[one] = gather

    def _arrive(self, gather: Gather) -> None:
        """All parameters of a gather are copied out when the first one is waited for."""
        if not gather.arrived:
            gather.arrived = True
            self._whole.update(gather.parameters)
            self._timeline.hold(GATHERED, self._e, sum(one.elements for one in gather.parameters))

    def _prefetch(self, call: Submodule) -> None:
        trace, latest, here, place = self._order.trace, self._latest, self._place, self._next
        if call.parameters:
            wanted = len({one for one in call.parameters if latest.get(one, -1) < here})
            found = set[Parameter]()
            while len(found) < wanted and place < len(trace):
                one, used = trace[place]
                latest[one] = used
                found.add(one)
                place += 1
        most = min(self._settings.max_live - self._available, self._settings.prefetch_bucket)
        ahead: dict[Parameter, None] = {}
        elements = 0
        while elements < most and place < len(trace):
            one, used = trace[place]
            latest[one] = max(latest.get(one, -1), used)
            if one not in ahead and self._is_missing(one):
                ahead[one] = None
                elements += one.elements
            place += 1
        self._next = place
        if ahead:
            self._gather(list(ahead))

    def release(self, call: Submodule) -> None:
        """`release_sub_module`: release parameters unless they are used again soon."""
        for one in call.parameters:
            active = self._active[one]
            active.discard(call.module)
            if not active and not self.persists(one) and not self._is_needed_soon(one, call):
                self._release(one)

    def _is_needed_soon(self, one: Parameter, released: Submodule) -> bool:
        """`__params_to_release`; it descends into modules only when it releases a leaf module."""
        if not self._order.count:
            return False
        here = min(self._place, self._order.count)
        if self._latest.get(one, -1) > here:
            return True
        distance = (self._order.recursive if released.is_leaf else self._order.own).distance(one, here)
        return distance is not None and distance < self._settings.max_reuse_distance

    def _release(self, one: Parameter) -> None:
        if one in self._whole and one not in self._flying:
            self._whole.discard(one)
            self._available -= one.elements
            self._make_secondary(one)
            if self._settings.zero_ranks * one.replicas > 1 or self._settings.offload_param != "none":
                self._timeline.free(GATHERED, self._e, one.elements)
                if one in self._saved and one not in self._outlived:
                    self._outlived[one] = one.elements
                    self._timeline.hold(KEPT_BY_AUTOGRAD, self._e, one.elements)

    def _make_secondary(self, one: Parameter) -> None:
        if self._settings.hpz_partition > 1 and one not in self._secondary:
            self._secondary.add(one)
            if self._settings.offload_param == "none":
                self._timeline.hold(KINDS.SECONDARY, self._e, secondary_shard(one, self._settings))

    def make_secondary(self, parameters: Iterable[Parameter]) -> None:
        """zero.Init partitions all parameters, and so does the optimizer before its step."""
        for one in parameters:
            self._make_secondary(one)

    def drop_secondary(self, parameters: Iterable[Parameter]) -> None:
        """`invalidate_secondary_tensor`, after the optimizer's step; frozen parameters keep theirs."""
        for one in parameters:
            if one in self._secondary:
                self._secondary.discard(one)
                if self._settings.offload_param == "none":
                    self._timeline.free(KINDS.SECONDARY, self._e, secondary_shard(one, self._settings))

    def save(self, call: Submodule, *, only_trained: bool = False) -> None:
        """Autograd saves the gathered tensors; a release frees nothing until their backward pass."""
        self._saved.update(one for one in call.parameters if one.trainable or not only_trained)

    def unsave(self, call: Submodule) -> None:
        """The backward pass of a call has run."""
        if self._saved:
            for one in call.parameters:
                self._saved.discard(one)
                if one in self._outlived:
                    self._timeline.free(KEPT_BY_AUTOGRAD, self._e, self._outlived.pop(one))

    def release_leftovers(self) -> None:
        """`release_backward_leftovers`: modules whose input has no gradient, which no hook releases."""
        for one, _ in self._order.trace:
            if self._active.pop(one, None) and not self.persists(one):
                self._release(one)

    def release_all(self) -> None:
        """`release_and_reset_all`, before the optimizer's step."""
        self._flying.clear()
        self._whole.clear()
        self._timeline.free_all(GATHERED)
        self._timeline.free_all(KEPT_BY_AUTOGRAD)
        self._saved.clear()
        self._outlived.clear()
        self._timeline.free_all(self._buffers)
