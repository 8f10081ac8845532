"""Stage 3's gathering of parameters: fetch, prefetch and release in the order of module calls.

Source: deepspeed/runtime/zero/partitioned_param_coordinator.py, which records the order of calls in the first
forward and backward pass and follows it afterwards; partition_parameters.py all_gather_coalesced for sizes of
buffers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zerokit.memory.layout import Parameter
from zerokit.memory.model_states import ceil_div
from zerokit.memory.settings import Settings
from zerokit.memory.term import TermKind
from zerokit.memory.timeline import Timeline

COORDINATOR = "deepspeed/runtime/zero/partitioned_param_coordinator.py"
PARTITION = "deepspeed/runtime/zero/partition_parameters.py"

GATHERED = TermKind(
    "gathered parameters",
    "buffers",
    unit="e",
    count="Σ sizes gathered at that moment",
    source=f"{COORDINATOR} fetch_sub_module, release_sub_module",
    certainty="modelled",
)
KEPT_BY_AUTOGRAD = replace(
    GATHERED,
    name="gathered parameters that autograd keeps",
    count="Σ sizes of experts and other weights outside torch.nn.Linear",
    source="autograd; deepspeed/runtime/zero/linear.py LinearFunctionForZeroStage3 saves others from it",
)
GATHER_BUFFERS = replace(
    GATHERED,
    name="buffers of parameters being gathered",
    count="Σ sizes in flight",
    source=f"{PARTITION} all_gather_coalesced",
)
COPIES_TO_GPU = replace(GATHER_BUFFERS, name="shards copied to the GPU", count="Σ⌈size/N⌉ in flight")


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
        self._uses: dict[int, list[int]] = {}
        for place, parameters in enumerate(calls):
            elements = self._before[-1]
            for one in parameters:
                elements += one.elements
                self._uses.setdefault(id(one), []).append(place)
            self._before.append(elements)

    def distance(self, one: Parameter, here: int) -> int | None:
        """Elements used from the call at `here` until the next use of `one`; None if there is none."""
        uses = self._uses[id(one)]
        following = bisect_left(uses, here)
        if following == len(uses):
            return None
        return self._before[uses[following]] - self._before[here]


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

    def __init__(self, timeline: Timeline, settings: Settings, calls: Sequence[Submodule]) -> None:
        self._timeline, self._settings, self._e = timeline, settings, settings.parameter_bytes
        self._calls = calls
        self._own = _Walk(() if call.is_leaf else call.parameters for call in calls)
        self._recursive = _Walk((*call.parameters, *call.within) for call in calls)
        self._trace = [(one, place) for place, call in enumerate(calls) for one in call.parameters]
        self._whole: set[int] = set()
        self._flying: dict[int, Gather] = {}
        self._active: dict[int, set[str]] = {}
        self._saved: set[int] = set()
        self._outlived: dict[int, int] = {}
        self._reset_trace()

    def persists(self, parameter: Parameter) -> bool:
        """Small parameters stay gathered: parameter_offload.py mark_persistent_parameters."""
        return parameter.elements <= self._settings.persistence_threshold

    def _reset_trace(self) -> None:
        self._queue = deque(self._trace)
        self._latest: dict[int, int] = {}
        self._place = 0
        self._available = 0

    def reset(self) -> None:
        """`reset_step`, at the start of a forward pass."""
        for gather in {id(gather): gather for gather in self._flying.values()}.values():
            self._arrive(gather)
            self._timeline.free(GATHER_BUFFERS, self._e, gather.buffer)
        for one in [one for gather in self._flying.values() for one in gather.parameters]:
            self._release(one)
        self._flying.clear()
        self._active.clear()
        self._reset_trace()

    def fetch(self, call: Submodule) -> None:
        """`fetch_sub_module`."""
        missing = [one for one in call.parameters if self._is_missing(one)]
        if missing:
            self._gather(missing)
        for one in call.parameters:
            self._active.setdefault(id(one), set()).add(call.module)
            gather = self._flying.pop(id(one), None)
            if gather is not None:
                self._arrive(gather)
                gather.waiting -= 1
                if gather.waiting == 0:
                    self._timeline.free(GATHER_BUFFERS, self._e, gather.buffer)
        self._prefetch(call)
        self._place += 1

    def _is_missing(self, one: Parameter) -> bool:
        return not self.persists(one) and id(one) not in self._whole and id(one) not in self._flying

    def _gather(self, parameters: Sequence[Parameter]) -> None:
        """A single parameter is gathered in place; several arrive in a buffer and are copied out."""
        world, e = self._settings.world_size, self._e
        self._available += sum(one.elements for one in parameters)
        shards = sum(ceil_div(one.elements, world) for one in parameters)
        offloaded = self._settings.offload_param != "none"
        if world == 1:
            if offloaded:
                self._timeline.hold(GATHERED, e, shards)
            gather = Gather(parameters, 0)
            gather.arrived = True
            self._whole.update(map(id, parameters))
        elif len(parameters) == 1:
            self._timeline.hold(GATHERED, e, parameters[0].elements)
            gather = Gather(parameters, 0)
            gather.arrived = True
            self._whole.add(id(parameters[0]))
        else:
            gather = Gather(parameters, shards * world)
            self._timeline.hold(GATHER_BUFFERS, e, gather.buffer)
        if offloaded and world > 1:
            self._timeline.spike(COPIES_TO_GPU, e, shards)
        for one in parameters:
            self._flying[id(one)] = gather

    def _arrive(self, gather: Gather) -> None:
        """All parameters of a gather are copied out when the first one is waited for."""
        if not gather.arrived:
            gather.arrived = True
            self._whole.update(map(id, gather.parameters))
            self._timeline.hold(GATHERED, self._e, sum(one.elements for one in gather.parameters))

    def _prefetch(self, call: Submodule) -> None:
        here, latest, queue = self._place, self._latest, self._queue
        if not queue:
            return
        wanted = {id(one) for one in call.parameters if latest.get(id(one), -1) < here}
        found: set[int] = set()
        while queue and len(found) < len(wanted):
            one, place = queue.popleft()
            latest[id(one)] = place
            found.add(id(one))
        most = min(self._settings.max_live - self._available, self._settings.prefetch_bucket)
        ahead: dict[int, Parameter] = {}
        elements = 0
        while queue and elements < most:
            one, place = queue.popleft()
            latest[id(one)] = max(latest.get(id(one), -1), place)
            if id(one) not in ahead and self._is_missing(one):
                ahead[id(one)] = one
                elements += one.elements
        if ahead:
            self._gather(list(ahead.values()))

    def release(self, call: Submodule) -> None:
        """`release_sub_module`: release parameters unless they are used again soon."""
        for one in call.parameters:
            active = self._active.get(id(one), set())
            active.discard(call.module)
            if not active and not self.persists(one) and not self._is_needed_soon(one, call):
                self._release(one)

    def _is_needed_soon(self, one: Parameter, released: Submodule) -> bool:
        """`__params_to_release`; it descends into modules only when it releases a leaf module."""
        if not self._calls:
            return False
        here = min(self._place, len(self._calls))
        if self._latest.get(id(one), -1) > here:
            return True
        distance = (self._recursive if released.is_leaf else self._own).distance(one, here)
        return distance is not None and distance < self._settings.max_reuse_distance

    def _release(self, one: Parameter) -> None:
        if id(one) in self._whole and id(one) not in self._flying:
            self._whole.discard(id(one))
            self._available -= one.elements
            if self._settings.world_size > 1 or self._settings.offload_param != "none":
                self._timeline.free(GATHERED, self._e, one.elements)
                if id(one) in self._saved and id(one) not in self._outlived:
                    self._outlived[id(one)] = one.elements
                    self._timeline.hold(KEPT_BY_AUTOGRAD, self._e, one.elements)

    def save(self, call: Submodule, *, only_trained: bool = False) -> None:
        """Autograd saves the gathered tensors; a release frees nothing until their backward pass."""
        self._saved.update(id(one) for one in call.parameters if one.trainable or not only_trained)

    def unsave(self, call: Submodule) -> None:
        """The backward pass of a call has run."""
        if self._saved:
            for one in call.parameters:
                self._saved.discard(id(one))
                if id(one) in self._outlived:
                    self._timeline.free(KEPT_BY_AUTOGRAD, self._e, self._outlived.pop(id(one)))

    def release_leftovers(self) -> None:
        """`release_backward_leftovers`: modules whose input has no gradient, which no hook releases."""
        for one, _ in self._trace:
            if self._active.pop(id(one), None) and not self.persists(one):
                self._release(one)

    def release_all(self) -> None:
        """`release_and_reset_all`, before the optimizer's step."""
        self._flying.clear()
        self._whole.clear()
        self._timeline.free_all(GATHERED)
        self._timeline.free_all(KEPT_BY_AUTOGRAD)
        self._saved.clear()
        self._outlived.clear()
        self._timeline.free_all(GATHER_BUFFERS)
