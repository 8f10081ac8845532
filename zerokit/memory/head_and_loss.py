"""Replay of the output matrix and the loss.

transformers makes all logits at once. zerokit's chunked loss and Liger's make a chunk at a time, together
with the gradients.
"""

from __future__ import annotations

from zerokit.choices import ChunkedLoss
from zerokit.memory.loss_chunks import chunk_tokens, saves_memory
from zerokit.memory.model_blocks import ModelCalls
from zerokit.memory.module_calls import ModuleCall
from zerokit.memory.sizes import Sizes
from zerokit.memory.stage import NEW_GRADIENT, Stage
from zerokit.memory.term import TermKind, kinds_of
from zerokit.memory.timeline import Timeline

KINDS = kinds_of(__file__)
ACTIVATION_GRADIENTS = KINDS.ACTIVATION_GRADIENTS
TIED_GRADIENT = KINDS.TIED_GRADIENT
TIED_SUM = KINDS.TIED_SUM


class HeadAndLoss:
    """Replays the output matrix and the loss on a stage."""

    def __init__(
        self,
        timeline: Timeline,
        stage: Stage,
        calls: ModelCalls,
        sizes: Sizes,
        *,
        e: int,
        chunked_loss: ChunkedLoss | None,
        activations: TermKind,
    ) -> None:
        """`e`: bytes of a parameter. `activations`: the kind under which the saved input counts."""
        self._timeline, self._stage, self._calls, self._sizes, self._e = timeline, stage, calls, sizes, e
        self._tokens = sizes.tokens
        self._activations = activations
        self.is_liger, self._may_chunk = chunked_loss == "liger", chunked_loss == "zerokit"

    @property
    def keeps_gradient(self) -> bool:
        """Whether the loss keeps the gradient of the matrix; a tied gradient is then not added in place."""
        return self.is_liger or bool(self._chunk(trained=True))

    def evaluate(self) -> None:
        """The evaluation: Liger's fused loss makes all logits without gradients, zerokit's does not.

        Source: liger_kernel transformers/model/llama.py lce_forward.
        """
        timeline, e, head = self._timeline, self._e, self._calls.head
        logits = self._tokens * self._sizes.vocabulary
        self._stage.fetch(head)
        if chunk := self._chunk(trained=False):
            timeline.spike(KINDS.EVALUATION_CHUNK, 8, chunk)
            self._stage.release(head)
            return
        timeline.hold(KINDS.EVALUATION_LOGITS, e, logits)
        self._stage.release(head)
        timeline.spike(KINDS.EVALUATION_CAPPED, e, logits if self._calls.capped else 0)
        wide = 4 if self._calls.loss_in_fp32 else e
        timeline.hold(KINDS.EVALUATION_FP32, 4, logits if wide != e else 0)
        timeline.spike(KINDS.EVALUATION_LOSS, wide, logits)
        for kind in (KINDS.EVALUATION_FP32, KINDS.EVALUATION_LOGITS):
            timeline.free_all(kind)

    def train(self) -> None:
        """The output matrix, the cross entropy, and the backward pass of both.

        ForCausalLMLoss casts logits to fp32 and keeps the result of log_softmax. In backward, gradients of
        both are in fp32 and are cast before they reach the matrix (transformers loss/loss_utils.py).
        """
        timeline, head, e = self._timeline, self._calls.head, self._e
        logits = self._tokens * self._sizes.vocabulary
        if self.is_liger:
            self._train_by_liger(head)
            return
        if chunk := self._chunk(trained=True):
            self._train_in_chunks(head, chunk)
            return
        self._stage.fetch(head)
        timeline.hold(self._activations, self._tokens, head.saved_bytes)
        timeline.hold(KINDS.LOGITS, e, logits)
        timeline.hold(KINDS.CAPPED_LOGITS, e, logits if self._calls.capped else 0)
        self._stage.release(head)
        wide = 4 if self._calls.loss_in_fp32 else e
        is_cast = e != wide
        timeline.hold(KINDS.FP32_LOGITS, 4, logits if is_cast else 0)
        timeline.enter("loss")
        log_softmax, gradients = (
            (KINDS.LOG_SOFTMAX, KINDS.FP32_LOGIT_GRADIENTS)
            if self._calls.loss_in_fp32
            else (KINDS.NATIVE_LOG_SOFTMAX, KINDS.NATIVE_LOGIT_GRADIENTS)
        )
        timeline.hold(log_softmax, wide, logits)
        timeline.free_all(KINDS.FP32_LOGITS)
        timeline.free_all(KINDS.LOGITS)
        timeline.enter("backward")
        self._stage.fetch(self._calls.whole)
        timeline.spike(gradients, wide, 2 * logits)
        # If the loss is in the type of the logits, the incoming gradient is as large as the log-softmax.
        incoming = log_softmax
        if is_cast:
            incoming = KINDS.LOGIT_GRADIENTS
            timeline.hold(incoming, e, logits)
            timeline.free_all(log_softmax)
        self._back(head, incoming)

    def _back(self, head: ModuleCall, incoming: TermKind) -> None:
        """`incoming`: the gradient of the logits."""
        timeline = self._timeline
        self._stage.fetch(head)
        self._hold_gradients(head)
        timeline.spike(ACTIVATION_GRADIENTS, self._tokens, head.back)
        # This happens before the hooks of the matrix's gradient.
        timeline.free_all(KINDS.CAPPED_LOGITS)
        timeline.free_all(incoming)
        self._reduce_gradients(head)
        timeline.free(self._activations, self._tokens, head.saved_bytes)
        self._stage.release(head)

    def _train_in_chunks(self, head: ModuleCall, chunk: int) -> None:
        """zerokit's loss: logits and their gradients, chunk by chunk."""
        timeline = self._timeline
        timeline.enter("loss")
        self._stage.fetch(head)
        timeline.hold(self._activations, self._tokens, head.saved_bytes)
        timeline.hold(ACTIVATION_GRADIENTS, self._tokens, head.back)
        for parameter in head.gradients:
            timeline.hold(KINDS.SUMMED_GRADIENT, 4, parameter.elements)
        timeline.spike(KINDS.LOGIT_CHUNK, 12, chunk)
        for parameter in head.gradients:  # of one chunk, beside the sum
            timeline.spike(NEW_GRADIENT, self._e, parameter.elements)
        timeline.free(self._activations, self._tokens, head.saved_bytes)
        self._stage.release(head)
        timeline.enter("backward")
        self._stage.fetch(self._calls.whole)
        self._stage.fetch(head)
        self._hold_gradients(head)
        timeline.free_all(KINDS.SUMMED_GRADIENT)
        self._reduce_gradients(head)
        timeline.free_all(ACTIVATION_GRADIENTS)
        self._stage.release(head)

    def _train_by_liger(self, head: ModuleCall) -> None:
        """Liger's fused loss: chunk by chunk; gradients are made in the forward pass."""
        timeline = self._timeline
        self._stage.fetch(head)
        timeline.enter("loss")
        self._hold_gradients(head)
        timeline.hold(ACTIVATION_GRADIENTS, self._tokens, self._e * self._sizes.h)
        chunks = max(1, -(-self._sizes.vocabulary // self._sizes.h))
        timeline.spike(KINDS.LIGER_CHUNK, self._e + 8, self._tokens * self._sizes.vocabulary // chunks)
        timeline.enter("backward")
        self._stage.fetch(self._calls.whole)
        self._reduce_gradients(head)
        timeline.free_all(ACTIVATION_GRADIENTS)
        self._stage.release(head)

    def _hold_gradients(self, head: ModuleCall) -> None:
        kind = TIED_GRADIENT if self._is_tied(head) else NEW_GRADIENT
        for parameter in head.gradients:
            self._timeline.hold(kind, self._e, parameter.elements)

    def _reduce_gradients(self, head: ModuleCall) -> None:
        """The gradient of a tied matrix waits for that of the embedding."""
        if not self._is_tied(head):
            for parameter in head.gradients:
                self._stage.ready(parameter)

    def _is_tied(self, head: ModuleCall) -> bool:
        return any(call.module == head.module for call in self._calls.blocks[0].calls)

    def _chunk(self, *, trained: bool) -> int:
        """The logits of a chunk of zerokit's loss; 0 if all logits are made at once."""
        if not self._may_chunk:
            return 0
        vocabulary, trained = self._sizes.vocabulary, trained and bool(self._calls.head.gradients)
        if not saves_memory(self._tokens, vocabulary, hidden=self._sizes.h, trained=trained):
            return 0
        return chunk_tokens(vocabulary) * vocabulary
