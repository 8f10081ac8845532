"""The interface of a ZeRO stage for the replay, and stage 0."""

from __future__ import annotations

from collections.abc import Iterable

from zerokit.memory.layout import Layout, Parameter
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.optimizer_states import OptimizerStates
from zerokit.memory.settings import Settings
from zerokit.memory.term import TermKind, kinds_of
from zerokit.memory.timeline import Timeline
from zerokit.units import MIB

KINDS = kinds_of(__file__)
PARAMETERS = KINDS.PARAMETERS
ROUNDING = KINDS.ROUNDING
GRADIENTS = KINDS.GRADIENTS
NEW_GRADIENT = KINDS.NEW_GRADIENT

_SMALLEST_OF_ITS_OWN = 10 * MIB
_ROUNDING = 2 * MIB
_TOO_SMALL_TO_SPLIT = MIB

ALLREDUCE_ELEMENTS = 500_000_000
"""Elements of gradients that stage 0 flattens at a time: runtime/engine.py MEMORY_OPT_ALLREDUCE_SIZE, which
no key sets."""


class Stage:
    """A ZeRO stage as far as GPU memory depends on it; this one allocates nothing."""

    gathers = False
    """Whether `fetch`, `release`, `save` and `unsave` do anything."""

    @property
    def state(self) -> object:
        """All that the next micro-batch depends on, after `begin_pass`; None: it is always another one."""
        return None

    def start(self) -> None:
        """Build the optimizer, and hold what exists before training."""

    def make_states(self) -> None:
        """Hold the optimizer states that the first step creates."""

    def begin_pass(self, *, boundary: bool) -> None:
        """A forward pass begins; at a boundary the optimizer steps after the backward pass."""

    def fetch(self, call: ModuleCall) -> None:
        """A module is about to run."""

    def release(self, call: ModuleCall) -> None:
        """A module has run."""

    def save(self, call: ModuleCall, only_trained: bool = False) -> None:
        """Autograd saves the weight of a module."""

    def unsave(self, call: ModuleCall) -> None:
        """Autograd releases it."""

    def ready(self, parameter: Parameter) -> None:
        """A gradient was made; it is held as `NEW_GRADIENT`."""

    def end_backward(self, *, boundary: bool) -> None:
        """All gradients of a micro-batch exist; at a boundary the optimizer steps next."""

    def step(self) -> None:
        """The optimizer's step."""


class FullGradients(Stage):
    """A stage that keeps every gradient, in the type of the parameters, until the step."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        self._timeline, self._layout, self._settings = timeline, layout, settings
        self._made = set[Parameter]()

    def ready(self, parameter: Parameter) -> None:
        """Keep the gradient, or add it to the kept gradient and free it."""
        e = self._settings.parameter_bytes
        self._timeline.free(NEW_GRADIENT, e, parameter.elements)
        if parameter not in self._made:
            self._made.add(parameter)
            self._timeline.hold(GRADIENTS, e, parameter.elements)


class Stage0(FullGradients):
    """Stage 0: every rank holds everything."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings) -> None:
        super().__init__(timeline, layout, settings)
        self._states = OptimizerStates(settings, "Φₜ")
        self._temporary = settings.optimizer.kind_of("TEMPORARY", "Φₜ")

    def start(self) -> None:
        """FP16_Optimizer clones and flattens the trained parameters in `__init__` (fused_optimizer.py)."""
        timeline, settings = self._timeline, self._settings
        e, trained = settings.parameter_bytes, self._layout.num_trainable
        # Each parameter is its own tensor unless the optimizer flattens them.
        flat = settings.wrapper == "fp16"
        hold_parameters(
            timeline, PARAMETERS, e, [one for one in self._layout.parameters if not (flat and one.trainable)]
        )
        if flat:
            timeline.hold(PARAMETERS, e, trained)
            timeline.spike(KINDS.CLONES, e, 2 * trained)
        if settings.has_master:
            # The first step runs at once, with zero gradients.
            timeline.hold(KINDS.MASTER, settings.master_bytes, trained)
            timeline.hold(KINDS.STEP_GRADIENTS, settings.master_bytes, trained)
            self._hold_states()
            timeline.spike(self._temporary, settings.temporary_bytes, trained)
            timeline.free_all(KINDS.STEP_GRADIENTS)

    def make_states(self) -> None:
        if not self._settings.has_master:
            self._hold_states()

    def _hold_states(self) -> None:
        self._states.hold(self._timeline, tensors_updated(self._layout, self._settings))

    def end_backward(self, *, boundary: bool) -> None:
        """The engine flattens and reduces groups that end with the gradient that exceeds 5e8 elements."""
        if not boundary:
            return
        numbers = [parameter.elements for parameter in self._layout.trainable]
        for group in _groups(numbers, ALLREDUCE_ELEMENTS):
            if len(group) > 1:
                self._timeline.spike(KINDS.FLAT_COPY, self._settings.parameter_bytes, sum(group))

    def step(self) -> None:
        timeline, settings = self._timeline, self._settings
        trained = self._layout.num_trainable
        if settings.has_master:
            timeline.hold(KINDS.STEP_GRADIENTS, settings.master_bytes, trained)
        if settings.wrapper == "fp16":
            timeline.spike(KINDS.CAST_GRADIENTS, settings.master_bytes, trained)
            timeline.free_all(GRADIENTS)
            timeline.spike(KINDS.NORM_MASK, 2 * settings.master_bytes + 1, trained if settings.tensor_rank else 0)
        timeline.spike(self._temporary, settings.temporary_bytes, trained)
        timeline.free_all(KINDS.STEP_GRADIENTS)
        timeline.free_all(GRADIENTS)
        self._made.clear()


class PlainTorch(Stage0):
    """Without DeepSpeed: torch's optimizer on the model's own parameters."""

    def __init__(self, timeline: Timeline, layout: Layout, settings: Settings, *, autocast: bool) -> None:
        super().__init__(timeline, layout, settings)
        self._autocast = autocast

    def start(self) -> None:
        super().start()
        if self._settings.zero_ranks > 1:
            self._timeline.hold(KINDS.DDP_BUCKETS, self._settings.parameter_bytes, self._layout.num_trainable)

    def begin_pass(self, *, boundary: bool) -> None:
        if self._autocast:
            self._timeline.free_all(KINDS.WEIGHT_COPIES)
            self._timeline.hold(KINDS.WEIGHT_COPIES, 2, self._layout.num_parameters)

    def end_backward(self, *, boundary: bool) -> None:
        self._timeline.free_all(KINDS.WEIGHT_COPIES)


def tensors_updated(layout: Layout, settings: Settings) -> list[int]:
    """Elements of the tensors that the optimizer gets; only FP16_Optimizer flattens them."""
    return [layout.num_trainable] if settings.wrapper == "fp16" else [one.elements for one in layout.trainable]


def block_bytes(number: int) -> int:
    """The bytes that torch's caching allocator hands out for a tensor of `number` bytes.

    A large tensor gets a segment of its own, rounded up to 2 MiB if the rest is too small for a block.

    Source: torch c10/cuda/CUDACachingAllocator.cpp, get_allocation_size and should_split (kMinLargeAlloc,
    kRoundLarge, kSmallSize).
    """
    if number < _SMALLEST_OF_ITS_OWN:
        return number
    whole = -(-number // _ROUNDING) * _ROUNDING
    return whole if whole - number <= _TOO_SMALL_TO_SPLIT else number


def hold_parameters(timeline: Timeline, kind: TermKind, e: int, parameters: Iterable[Parameter]) -> None:
    """Hold separate tensors, in blocks of torch's allocator."""
    for one in parameters:
        timeline.hold(kind, e, one.elements)
        timeline.hold(ROUNDING, 1, block_bytes(e * one.elements) - e * one.elements)


def _groups(numbers: list[int], most: int) -> list[list[int]]:
    """Groups of `allreduce_no_retain`: a group ends with the number that exceeds `most`."""
    groups: list[list[int]] = [[]]
    for number in numbers:
        groups[-1].append(number)
        if sum(groups[-1]) > most:
            groups.append([])
    return [group for group in groups if group]
