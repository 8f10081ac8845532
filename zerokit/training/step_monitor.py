"""Watches the loss and the gradient norm of each step, over all ranks.

A loss that is not a number ends the run before anything is saved; a spike is reported, or ends it, too; the same
on every rank.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from zerokit import console
from zerokit.distributed.group import RankGroup
from zerokit.errors import RunError
from zerokit.training.folder import checkpoints

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import TrainerState, TrainingArguments

MAX_SKIPPED_FP16_STEPS = 50
"""Steps in a row that DeepSpeed may skip in fp16. From 2^32, a loss scale takes about thirty to settle."""

_STEPS = 50
"""Number of previous losses that define the usual loss."""
_LEAST_STEPS = 20
_DEVIATIONS = 8
_SHARE = 0.5
"""Least share of the mean: when losses hardly differ, a small deviation is no spike."""
_IN_A_ROW = 5
"""After this many high losses in a row, they are the usual loss."""


class UsualLoss:
    """The losses of the last steps. Losses that stay high become usual."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=_STEPS)
        self._spikes: list[float] = []
        """The last high losses in a row."""

    def exceeded_by(self, loss: float) -> float | None:
        """The mean of the last losses if `loss` is a spike; else adds `loss` and returns None.

        A spike exceeds the mean by 8 standard deviations, and by half of the mean.
        """
        if len(self._losses) >= _LEAST_STEPS:
            mean = fmean(self._losses)
            deviation = math.sqrt(fmean((value - mean) ** 2 for value in self._losses))  # pstdev is slow
            if loss - mean > max(_DEVIATIONS * deviation, _SHARE * abs(mean)):
                self._spikes.append(loss)
                if len(self._spikes) < _IN_A_ROW:
                    return mean
                self._losses = deque(self._spikes[:-1], maxlen=_STEPS)
        self._spikes.clear()
        self._losses.append(loss)
        return None


def worst(losses: Iterable[Iterable[float]]) -> tuple[int, int]:
    """Rank and micro batch with the first loss that is not a number, else the largest."""
    found = [(rank, micro, loss) for rank, own in enumerate(losses) for micro, loss in enumerate(own)]
    broken = [batch for batch in found if not math.isfinite(batch[2])]
    rank, micro, _ = min(broken, key=lambda batch: batch[1]) if broken else max(found, key=lambda batch: batch[2])
    return rank, micro


class StepMonitor:
    """Computes the loss of each step over all ranks, and the micro batch with the highest loss.

    Args:
        name_batch: returns the examples of a micro batch, by its rank, its number in the step and the number
            of steps before; an empty string on ranks that do not know them.
        padding_token: id of the token that is not counted if batches have no attention mask.
        copies: number of ranks that have the same tokens.
    """

    def __init__(
        self,
        group: RankGroup,
        args: TrainingArguments,
        accelerator: Accelerator,
        name_batch: Callable[[int, int, int], str],
        *,
        on_spike: str,
        padding_token: int | None = None,
        copies: int = 1,
    ) -> None:
        self._group, self._args, self._accelerator = group, args, accelerator
        self._name_batch, self._on_spike = name_batch, on_spike
        self._padding_token, self._copies = padding_token, copies
        self.counts_tokens = args.include_num_input_tokens_seen
        """``all``, ``non_padding`` or ``no``."""
        self.is_asked_to_leave = False
        """Whether a rank was asked to leave before the end of the last step."""
        self.state: TrainerState
        self._losses: list[torch.Tensor] = []
        """Of this rank's micro batches since the last step."""
        self._num_tokens = torch.zeros((), dtype=torch.float64, device=args.device)
        """Of this rank's micro batches since the last step."""
        self._usual_loss = UsualLoss()
        self._num_skipped_by_deepspeed = 0
        """In a row."""

    def count_tokens(self, inputs: Mapping[str, Any]) -> None:
        """Count the tokens of a micro batch, before its step: the step sums them over the ranks."""
        if self.counts_tokens == "no" or "input_ids" not in inputs:
            return
        if self.counts_tokens == "all":
            self._num_tokens += inputs["input_ids"].numel()
        elif "attention_mask" in inputs:
            self._num_tokens += inputs["attention_mask"].sum()
        elif self._padding_token is not None:
            self._num_tokens += (inputs["input_ids"] != self._padding_token).sum()
        else:
            self._num_tokens += inputs["input_ids"].numel()

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add the loss of a micro batch."""
        self._losses.append(loss.detach())

    def end_step(self, norm: torch.Tensor | float | None) -> float | None:
        """Judge a step; returns the gradient norm to log. RunError on every rank if the run has diverged."""
        losses, self._losses = self._losses, []
        skipped_by_deepspeed = self._accelerator.optimizer_step_was_skipped
        self._num_skipped_by_deepspeed = self._num_skipped_by_deepspeed + 1 if skipped_by_deepspeed else 0
        loss, grad_norm = self._sum_over_ranks(losses, norm)
        # In fp16 DeepSpeed skips steps while its loss scale settles.
        if self._args.fp16 and 0 < self._num_skipped_by_deepspeed < MAX_SKIPPED_FP16_STEPS:
            return grad_norm
        if not math.isfinite(loss):
            self.stop(self._at_step(f"the loss is {loss}"), losses)
        usual = self._usual_loss.exceeded_by(loss)
        if usual is not None and self._group.policy.has_values:
            self._report_spike(self._at_step(f"the loss leaps from {usual:.3g} to {loss:.3g}"), losses)
        if grad_norm is not None and not math.isfinite(grad_norm):
            self.stop(self._at_step(f"the gradient norm is {float(grad_norm)}"))
        return grad_norm

    def stop(self, what: str, losses: list[torch.Tensor] | None = None) -> None:
        """End the run, which has diverged (RunError on every rank); does nothing in a rehearsal.

        Args:
            losses: of this rank's micro batches of the step, to find the batch.
        """
        if not self._group.policy.has_values:
            return
        batch = "" if losses is None else self._worst_batch(losses)
        rate = f"training.learning_rate ({self._args.learning_rate:g})"
        more = "more warmup_steps, or train in bf16" if self._args.fp16 else "more warmup_steps"
        raise RunError(
            f"the run has diverged: {what}",
            where=self._args.output_dir,
            hint=f"No model was replaced. Lower {rate}, or give it {more}"
            + (f". The batch that shows it: {batch}" if batch else ""),
        )

    def _sum_over_ranks(
        self, losses: list[torch.Tensor], norm: torch.Tensor | float | None
    ) -> tuple[float, float | None]:
        """The loss of a step over all ranks, and its gradient norm, which each rank knows.

        Ranks also learn whether one is asked to leave: all stop, or none.
        """
        asked = torch.full_like(self._num_tokens, self._group.leave_request.why is not None)
        loss = sum(losses, torch.zeros_like(asked))
        # One exchange between ranks and one wait for the device per step, so the norm is read here, too.
        total = self._accelerator.reduce(torch.stack((loss, asked, self._num_tokens)), reduction="sum")
        if isinstance(norm, torch.Tensor):
            total = torch.cat((total, norm.detach().to(total).reshape(1)))
        loss_sum, asking, num_tokens, *norms = total.tolist()
        self._num_tokens.zero_()
        self.is_asked_to_leave = asking > 0
        self.state.num_input_tokens_seen += round(num_tokens / self._copies)
        grad_norm = norms[0] if isinstance(norm, torch.Tensor) else norm
        return loss_sum / self._args.world_size, grad_norm

    def _at_step(self, what: str) -> str:
        return f"{what} at step {self.state.global_step + 1}"

    def _worst_batch(self, losses: list[torch.Tensor]) -> str:
        """The micro batch with the highest loss, with its examples; the same on every rank."""
        rank, micro = worst(self._group.gather_objects([float(loss) for loss in losses]))
        step = self.state.global_step
        name = self._group.together(lambda: self._name_batch(rank, micro, step))
        return self._group.first(name or None) or f"rank {rank}"

    def _report_spike(self, what: str, losses: list[torch.Tensor]) -> None:
        batch = self._worst_batch(losses)
        if self._on_spike == "stop":
            left = checkpoints(Path(self._args.output_dir))
            earlier = f"; {left[-1]} is from before it" if left else ""
            raise RunError(
                f"{what}: {batch}",
                where=self._args.output_dir,
                hint=f"Look at these examples, or go on with --training.on_spike note{earlier}",
            )
        if self._group.ranks.is_main:
            console.note(f"zerokit: warning: {what}: {batch}")
