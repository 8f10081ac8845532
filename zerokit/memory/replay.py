"""A training step replayed call by call: activations, gathered parameters and gradients come and go.

The replay counts bytes only. It starts from a run in its second step, with optimizer states there, and goes
through one whole step: all micro-batches that differ, then the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerokit.memory.layout import Parameter
from zerokit.memory.model_calls import ModelCalls
from zerokit.memory.module_calls import Block, ModuleCall
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import NEW_GRADIENT, Stage
from zerokit.memory.timeline import Timeline

ACTIVATIONS = "activations"
CHECKPOINTS = "inputs of checkpointed layers"
WORK = "working memory of one layer"
ACTIVATION_GRADIENTS = "gradients of activations"
LOGITS = "logits and loss"
TIED_GRADIENT = "gradient of the tied embedding"


class Replay:
    """Drives a stage through a step."""

    def __init__(
        self,
        timeline: Timeline,
        stage: Stage,
        model_calls: ModelCalls | None,
        sizes: Sizes | None,
        *,
        e: int,
        parameters: Sequence[Parameter],
        checkpointing: bool,
        chunked_loss: bool,
    ) -> None:
        self._timeline, self._stage = timeline, stage
        self._model_calls, self._sizes, self._e = model_calls, sizes, e
        self._parameters = parameters
        self._checkpointing, self._chunked = checkpointing, chunked_loss
        self._tokens = sizes.tokens if sizes is not None else 0

    def train(self, micro_batches: int) -> None:
        """One optimizer step of `micro_batches`; beyond three, all but the first and last are alike."""
        self._timeline.enter("forward")
        self._stage.make_states()
        count = min(micro_batches, 3)
        for number in range(count):
            self._micro_batch(boundary=number == count - 1)
        self._timeline.enter("step")
        self._stage.step()

    def _micro_batch(self, *, boundary: bool) -> None:
        timeline = self._timeline
        timeline.enter("forward")
        self._stage.begin_pass(boundary=boundary)
        if self._model_calls is None:
            timeline.enter("backward")
            for parameter in reversed(self._parameters):
                if parameter.trainable:
                    self._gradient(parameter)
            self._stage.end_backward(boundary=boundary)
            return
        for block in self._model_calls.blocks:
            self._forward(block, saves=not (block.is_layer and self._checkpointing))
        self._head_and_loss()
        for block in reversed(self._model_calls.blocks):
            self._backward(block)
        self._stage.end_backward(boundary=boundary)

    def steps(self) -> Iterator[ModuleCall]:
        """The steps of one micro-batch in the order of their calls, forward, again, and backward."""
        assert self._model_calls is not None
        blocks, head = self._model_calls.blocks, self._model_calls.head
        for block in blocks:
            yield from block.steps
        yield head
        if not self._chunked:
            yield head
        for block in reversed(blocks):
            if block.is_layer and self._checkpointing:
                yield from block.steps
            yield from reversed(block.steps)

    def _bytes(self, per_token: float) -> int:
        return int(per_token * self._tokens)

    def _forward(self, block: Block, *, saves: bool) -> None:
        timeline, stage = self._timeline, self._stage
        assert self._sizes is not None
        if not saves:
            timeline.hold(CHECKPOINTS, self._bytes(self._e * self._sizes.h))
        for step in block.steps:
            stage.fetch(step, forward=True)
            saved = self._bytes(step.saved_bytes)
            if saves:
                timeline.hold(ACTIVATIONS, saved)
                timeline.spike(WORK, self._bytes(step.work))
                if step.keeps_weight:
                    stage.save(step)
            else:
                timeline.spike(WORK, self._bytes(step.work) + saved)
            stage.release(step, forward=True)

    def _backward(self, block: Block) -> None:
        recomputed = block.is_layer and self._checkpointing
        if recomputed:
            self._forward_again(block)
        for step in reversed(block.steps):
            self._step_back(step)
        if recomputed:
            assert self._sizes is not None
            self._timeline.free(CHECKPOINTS, self._bytes(self._e * self._sizes.h))

    def _forward_again(self, block: Block) -> None:
        for step in block.steps:
            self._stage.fetch(step, forward=True)
            self._timeline.hold(ACTIVATIONS, self._bytes(step.saved_bytes))
            self._timeline.spike(WORK, self._bytes(step.work))
            if step.keeps_weight:
                self._stage.save(step)
            self._stage.release(step, forward=True)

    def _step_back(self, step: ModuleCall) -> None:
        timeline = self._timeline
        self._stage.fetch(step, forward=False)
        gradients = step.gradients
        for parameter in gradients:
            timeline.hold(NEW_GRADIENT, self._e * parameter.elements)
        timeline.spike(ACTIVATION_GRADIENTS, self._bytes(step.back))
        timeline.free_all(TIED_GRADIENT if gradients else "nothing")
        for parameter in gradients:
            self._stage.ready(parameter)
        timeline.free(ACTIVATIONS, self._bytes(step.saved_bytes))
        if step.keeps_weight:
            self._stage.unsave(step)
        self._stage.release(step, forward=False)

    def _gradient(self, parameter: Parameter) -> None:
        self._timeline.hold(NEW_GRADIENT, self._e * parameter.elements)
        self._stage.ready(parameter)

    def _head_and_loss(self) -> None:
        """The output matrix, the cross entropy forward and backward, and the matrix backward.

        ForCausalLMLoss casts the logits to fp32, log_softmax keeps its result; backward, the gradients of
        both are fp32 and are cast before they reach the matrix (transformers loss/loss_utils.py).
        """
        assert self._model_calls is not None
        assert self._sizes is not None
        timeline, head, e = self._timeline, self._model_calls.head, self._e
        logits = self._bytes(self._sizes.vocabulary)
        if self._chunked:
            self._chunked_head(head)
            return
        self._stage.fetch(head, forward=True)
        timeline.hold(ACTIVATIONS, self._bytes(head.saved_bytes))
        capped = e * logits if self._model_calls.capped else 0
        timeline.hold(LOGITS, e * logits + capped)
        self._stage.release(head, forward=True)
        cast = 4 * logits if e != 4 else 0
        timeline.hold(LOGITS, cast)
        timeline.enter("loss")
        timeline.hold(LOGITS, 4 * logits)
        timeline.free(LOGITS, cast + e * logits)
        timeline.enter("backward")
        timeline.hold(LOGITS, 8 * logits)
        timeline.free(LOGITS, 8 * logits)
        timeline.hold(LOGITS, cast and e * logits)
        timeline.free(LOGITS, cast)
        self._head_back(head)
        timeline.free_all(LOGITS)

    def _head_back(self, head: ModuleCall) -> None:
        """A tied matrix's gradient waits for that of the embedding."""
        timeline = self._timeline
        self._stage.fetch(head, forward=False)
        tied = self._is_tied(head)
        for parameter in head.gradients:
            timeline.hold(TIED_GRADIENT if tied else NEW_GRADIENT, self._e * parameter.elements)
        timeline.spike(ACTIVATION_GRADIENTS, self._bytes(head.back))
        if not tied:
            for parameter in head.gradients:
                self._stage.ready(parameter)
        timeline.free(ACTIVATIONS, self._bytes(head.saved_bytes))
        self._stage.release(head, forward=False)

    def _chunked_head(self, head: ModuleCall) -> None:
        """Liger's fused loss: chunk by chunk, gradients made in the forward pass already."""
        assert self._sizes is not None
        timeline = self._timeline
        self._stage.fetch(head, forward=True)
        timeline.enter("loss")
        gradient = sum(self._e * parameter.elements for parameter in head.gradients)
        chunks = max(1, -(-self._sizes.vocabulary // self._sizes.h))
        timeline.hold(LOGITS, self._bytes(self._e * self._sizes.h) + gradient)
        timeline.spike(LOGITS, self._bytes((self._e + 8) * self._sizes.vocabulary) // chunks)
        timeline.enter("backward")
        tied = self._is_tied(head)
        timeline.free(LOGITS, gradient)
        for parameter in head.gradients:
            timeline.hold(TIED_GRADIENT if tied else NEW_GRADIENT, self._e * parameter.elements)
            if not tied:
                self._stage.ready(parameter)
        timeline.free_all(LOGITS)
        self._stage.release(head, forward=True)

    def _is_tied(self, head: ModuleCall) -> bool:
        assert self._model_calls is not None
        return any(step.module == head.module for step in self._model_calls.blocks[0].steps)
