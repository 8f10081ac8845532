"""Replay of a pass, call by call. It counts bytes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from zerokit.choices import ChunkedLoss
from zerokit.memory.adapters import MERGED_WEIGHT
from zerokit.memory.bnb_4bit import UNPACKED
from zerokit.memory.head_and_loss import ACTIVATION_GRADIENTS, TIED_GRADIENT, TIED_SUM, HeadAndLoss
from zerokit.memory.layout import Parameter
from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.module_calls import Block, ModuleCall
from zerokit.memory.recording import RecordedPass, RecordedStage
from zerokit.memory.same_object import SameObject
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import NEW_GRADIENT, Stage
from zerokit.memory.term import TermKind, kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
EVALUATION_WORK = KINDS.EVALUATION_WORK


@dataclass(frozen=True, kw_only=True)
class Switches:
    """What the passes of a micro-batch depend on, besides the model and its sizes."""

    e: int
    """Bytes of a parameter."""
    checkpointing: bool = False
    offloads_checkpoints: bool = False
    chunked_loss: ChunkedLoss | None = None
    replaces_linear: bool = False


class _Replay:
    """Replays a pass on a stage."""

    def __init__(
        self,
        timeline: Timeline,
        stage: Stage,
        model_calls: ModelCalls | None,
        sizes: Sizes | None,
        parameters: Sequence[Parameter],
        switches: Switches,
    ) -> None:
        self._timeline, self._stage = timeline, stage
        self._model_calls, self._sizes, self._e = model_calls, sizes, switches.e
        self._parameters, self._switches = parameters, switches
        self._checkpointing = switches.checkpointing
        self._offloads = switches.checkpointing and switches.offloads_checkpoints
        self._tied_module: str | None = None
        self._tokens = sizes.tokens if sizes is not None else 0
        self._activations = KINDS.ACTIVATIONS if model_calls is None else _activations(model_calls)
        self._head: HeadAndLoss | None = None
        if model_calls is not None and sizes is not None:
            self._head = HeadAndLoss(
                *(timeline, stage, model_calls, sizes),
                e=switches.e,
                chunked_loss=switches.chunked_loss,
                activations=self._activations,
            )
        # A view, or a tensor that its function keeps, is not summed.
        is_kept = self._head is not None and self._head.keeps_gradient
        self._head_adds_in_place = self._adds_in_place = switches.replaces_linear and not is_kept

    def evaluate(self) -> None:
        """One batch of evaluation after a step: forward layer by layer without gradients, then the loss."""
        assert self._model_calls is not None
        assert self._sizes is not None
        assert self._head is not None
        timeline, stage, tokens = self._timeline, self._stage, self._tokens
        for _ in range(2):
            stage.fetch(self._model_calls.whole)
        timeline.hold(KINDS.EVALUATION_HIDDEN, self._e, self._sizes.h * tokens)
        for call in (call for block in self._model_calls.blocks for call in block.calls):
            stage.fetch(call)
            for one in call.inner or (call,):
                timeline.spike(EVALUATION_WORK, tokens, one.work + one.saved_bytes)
            stage.release(call)
        self._head.evaluate()
        timeline.free_all(KINDS.EVALUATION_HIDDEN)

    def train(self) -> None:
        """The forward and backward pass of one micro-batch."""
        timeline = self._timeline
        if self._model_calls is None:
            timeline.enter("backward")
            for parameter in reversed(self._parameters):
                if parameter.trainable:
                    self._gradient(parameter)
            return
        for _ in range(2):
            self._stage.fetch(self._model_calls.whole)
        for block in self._model_calls.blocks:
            self._forward(block, saves=not (block.is_layer and self._checkpointing))
        self._offload_checkpoint()
        self._adds_in_place = self._head_adds_in_place
        self._tied_module = self._model_calls.head.module
        assert self._head is not None
        assert self._sizes is not None
        self._head.train()
        self._stage.fetch(self._model_calls.whole)
        # After dropout, a branch has its own gradient.
        drops = self._model_calls.drops
        kind = KINDS.RESIDUAL_GRADIENTS if drops else KINDS.RESIDUAL_GRADIENT
        timeline.hold(kind, self._e, (1 + drops) * self._sizes.h * self._tokens)
        for block in reversed(self._model_calls.blocks):
            self._backward(block)
        timeline.free_all(kind)

    def _forward(self, block: Block, *, saves: bool, last: ModuleCall | None = None) -> None:
        """`last`: stop in that call before it is released."""
        timeline, stage, tokens = self._timeline, self._stage, self._tokens
        assert self._sizes is not None
        if not saves:
            self._offload_checkpoint()
            timeline.hold(KINDS.CHECKPOINTS, self._e, self._sizes.h * tokens)
        for call in block.calls:
            stage.fetch(call)
            for one in call.inner or (call,):
                if one.unpacks:
                    timeline.hold(UNPACKED, self._e, one.unpacks)
                if saves:
                    timeline.hold(self._activations, tokens, one.saved_bytes)
                if one.made:
                    self._measure(one)
                timeline.spike(KINDS.WORK, tokens, one.work if saves else one.work + one.saved_bytes)
                if one.unpacks:
                    timeline.free_all(UNPACKED)
                if saves:
                    if one.keeps_weight:
                        stage.save(one)
                    elif last is not None:
                        # Recomputed tensors are saved detached from the parameter (torch utils/checkpoint.py
                        # _recomputation_hook); frozen parameters are saved themselves.
                        stage.save(one, only_trained=True)
                if one.made:
                    timeline.free_all(MERGED_WEIGHT)
            if call is last:
                break
            stage.release(call)

    def _offload_checkpoint(self) -> None:
        """The input of the layer that has run is in host memory until its backward pass."""
        if self._offloads:
            self._timeline.free_all(KINDS.CHECKPOINTS)

    def _backward(self, block: Block) -> None:
        recomputed = block.is_layer and self._checkpointing
        backward, first = block.backward, 0
        if recomputed:
            assert self._sizes is not None
            if self._offloads:
                self._timeline.hold(KINDS.CHECKPOINTS, self._e, self._sizes.h * self._tokens)
            # The first saved tensor of the layer may be its input, which is already kept.
            if block.keeps_input:
                self._timeline.free(KINDS.CHECKPOINTS, self._e, self._sizes.h * self._tokens)
            first = _gathered_first(block)
            for call in backward[:first]:
                self._stage.fetch(call)
            self._forward(block, saves=True, last=backward[first - 1])
        assert self._model_calls is not None
        before = self._model_calls.blocks[0] if block.is_embedding else block
        for number, call in enumerate(backward):
            again = before is not block and any(one.module == call.module for one in before.calls)
            waits = again and bool(call.parameters)
            # Token ids have no gradient, from which stage 3 would notice that an embedding has run backward.
            self._call_back(call, fetches=number >= first, releases=not block.is_embedding, waits=waits)
        if recomputed and not block.keeps_input:
            assert self._sizes is not None
            self._timeline.free(KINDS.CHECKPOINTS, self._e, self._sizes.h * self._tokens)

    def _call_back(self, call: ModuleCall, *, fetches: bool, releases: bool, waits: bool) -> None:
        """Run a call backward.

        Gradients of a leaf module are reduced when all of them exist, in the order of parameters.

        Args:
            call: the call.
            fetches: whether its parameters are fetched first.
            releases: whether they are released afterwards.
            waits: the module runs twice, and this gradient is added to that of its first call.
        """
        if fetches:
            self._stage.fetch(call)
        for one in reversed(call.inner or (call,)):
            for part in reversed(one.parts or (one,)):
                self._part_back(part, reduces=not (call.inner or waits))
            if waits:
                self._wait(one)
        if call.inner:
            for parameter in call.gradients:
                self._stage.ready(parameter)
        if releases:
            self._stage.release(call)

    def _part_back(self, call: ModuleCall, *, reduces: bool) -> None:
        timeline, gradients = self._timeline, call.gradients
        for parameter in gradients:
            timeline.hold(NEW_GRADIENT, self._e, parameter.elements)
        sums = sum(one.elements for one in gradients) if call.sums_gradients else 0
        timeline.hold(KINDS.MLP_SUMS, 4, sums)
        timeline.spike(ACTIVATION_GRADIENTS, self._tokens, call.back)
        timeline.free(KINDS.MLP_SUMS, 4, sums)
        # Autograd frees the saved tensors of a function before the hooks of its gradients run.
        if call.parameters:
            self._stage.unsave(call)
        tied = timeline.bytes_of(TIED_GRADIENT)
        if tied and call.module == self._tied_module:
            if not self._adds_in_place:
                timeline.spike(TIED_SUM, self._e, tied // self._e)
            self._adds_in_place = True  # the sum is no view
            timeline.free_all(TIED_GRADIENT)
        if reduces:
            for parameter in gradients:
                self._stage.ready(parameter)
        timeline.free(self._activations, self._tokens, call.saved_bytes)
        if call.unpacks:
            timeline.hold(UNPACKED, self._e, call.unpacks)
            timeline.spike(ACTIVATION_GRADIENTS, self._tokens, call.back + call.waits)
            timeline.free_all(UNPACKED)

    def _wait(self, call: ModuleCall) -> None:
        self._tied_module = call.module
        for parameter in call.gradients:
            self._timeline.free(NEW_GRADIENT, self._e, parameter.elements)
            self._timeline.hold(TIED_GRADIENT, self._e, parameter.elements)

    def _measure(self, call: ModuleCall) -> None:
        """DoRA makes LoRA's weight, scales it, adds it to the layer's weight, and takes the norm."""
        self._timeline.hold(MERGED_WEIGHT, self._e, call.made)
        self._timeline.spike(MERGED_WEIGHT, self._e, 2 * max(one.elements for one in call.parameters))

    def _gradient(self, parameter: Parameter) -> None:
        self._timeline.hold(NEW_GRADIENT, self._e, parameter.elements)
        self._stage.ready(parameter)


@lru_cache(maxsize=128)
def recorded_pass(
    model_calls: ModelCalls | None,
    sizes: Sizes | None,
    parameters: SameObject[Sequence[Parameter]],
    switches: Switches,
    *,
    gathers: bool,
    trains: bool = True,
) -> RecordedPass:
    """The passes of one micro-batch, or a batch of evaluation, on any stage that `gathers` or does not."""
    recorder = RecordedPass()
    replay = _Replay(
        recorder, RecordedStage(recorder, gathers=gathers), model_calls, sizes, parameters.value, switches
    )
    replay.train() if trains else replay.evaluate()
    recorder.act("end")
    return recorder


def _gathered_first(block: Block) -> int:
    """The number of calls, from the last one, that are gathered for backward before recomputation.

    Recomputation begins when the first saved tensor is needed, after the hook of the call that saved it. It
    ends with the last saved tensor, within the same call (torch utils/checkpoint.py, non-reentrant).
    """
    backward = block.backward
    return next(number for number, call in enumerate(backward, 1) if call.parameters or call.all_saved)


def _activations(model_calls: ModelCalls) -> TermKind:
    """The kind with the formula of the first layer."""
    layers = [block for block in model_calls.blocks if block.is_layer]
    parts = [part.symbols for call in layers[0].calls for part in call.all_saved] if layers else []
    count = f"(L·({' + '.join(parts)}) + final norm)"
    return replace(KINDS.ACTIVATIONS, count=count, certainty="modelled" if model_calls.known else "guess")
