"""transformers' Trainer, which looks at each step: a loss that is no number, a spike, a request to leave.

What it does about it, all ranks do alike: note it, leave the step out, or end the run before it saves.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from zerokit import console
from zerokit.checkpoint.source import is_rehearsal
from zerokit.distributed.heap import keep_freed_memory
from zerokit.errors import RunError
from zerokit.patches import overriding
from zerokit.training.engine_calls import keep_out_of_graphs, shorten_calls
from zerokit.training.folder import checkpoints
from zerokit.training.saving_trainer import SavingTrainer
from zerokit.training.skipping import SkippableSteps
from zerokit.training.spikes import Places, UsualLoss, named, rows_of, worst
from zerokit.units import quantity

if TYPE_CHECKING:
    from zerokit.training.blanks import BlanksLast

MOST_SKIPPED_STEPS = 50
"""In a row, after which fp16 does not train: from 2^32, a loss scale needs about thirty to find its place."""


@overriding(
    "transformers.trainer:Trainer",
    training_step="stop when the loss is no number, and know a step that is stuck",
    _track_num_input_tokens="count tokens once a step, not once a micro batch",
    _clip_grad_norm="ask the device for the norm together with the loss",
    _get_grad_norm="stop when the gradient norm is no number, and hear that another rank is asked to leave",
)
class WatchfulTrainer(SavingTrainer):
    """Knows the loss of each step over all ranks, and the examples of the batch that did most to it."""

    def __init__(self, *, on_spike: str, max_skipped_steps: int, places: Places, **kwargs: Any) -> None:
        """With `on_spike` ``note``, ``skip`` or ``stop``; `places` of the training examples."""
        super().__init__(**kwargs)
        self._train_sampler: BlanksLast | None = None
        self._losses: list[torch.Tensor] = []
        """Of this rank's micro batches since the last step."""
        self._num_tokens = torch.zeros((), dtype=torch.float64, device=self.args.device)
        """Of this rank's micro batches since the last step, without padding."""
        self._on_spike, self._places = on_spike, places
        self._max_skipped = max_skipped_steps if on_spike == "skip" and not is_rehearsal() else None
        """Steps in a row that may be left out; None where none is."""
        self._usual_loss = UsualLoss(may_stay=self._max_skipped is None)
        self._last_loss = torch.zeros(())
        """Of this rank's micro batches, that is a number."""
        self._left_out, self._num_left_out = False, 0
        """Whether the last step was, and how many in a row."""
        self._num_skipped = 0
        self._leaves = False
        """Whether a rank was asked to leave, by the end of the last step."""

    def watch_steps(self) -> None:
        """Begin to leave steps out, if that is asked for: the engine is there."""
        shorten_calls(self.deepspeed)
        if self.args.device.type == "cpu":
            keep_freed_memory()
        if self.args.torch_compile:
            keep_out_of_graphs(self.deepspeed)
        if self._max_skipped is not None:
            SkippableSteps(self.deepspeed, self.accelerator, self._leaves_out)

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """The Trainer's; its loss is looked at when the optimizer has made its step."""
        if self._counts_mask_of(inputs):  # before it: the optimizer, in whose step they are told, is in it
            self._num_tokens += inputs["attention_mask"].sum()
        with self._group.work.step():
            loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        self._losses.append(loss.detach())
        if self._max_skipped is not None:  # one that is no number would stay in the mean that is logged
            loss = self._last_loss = torch.where(loss.isfinite(), loss, self._last_loss)
        return loss

    def _track_num_input_tokens(self, inputs: dict[str, Any]) -> None:
        if not self._counts_mask_of(inputs):
            super()._track_num_input_tokens(inputs)

    def _counts_mask_of(self, inputs: dict[str, Any]) -> bool:
        """Whether their tokens are told to the other ranks with the loss of the step."""
        return self.args.include_num_input_tokens_seen == "non_padding" and "attention_mask" in inputs

    def _clip_grad_norm(self, *args: Any, **kwargs: Any) -> None:
        return  # which the engine has done; the Trainer would wait for the norm here

    def _get_grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        # Called once a step, right after it, on every rank.
        found = self.deepspeed.get_global_grad_norm()
        losses, self._losses = self._losses, []
        left_out, self._left_out = self._left_out, False
        if left_out:
            return None
        skipped = self.accelerator.optimizer_step_was_skipped
        self._num_skipped = self._num_skipped + 1 if skipped else 0
        if self._max_skipped is None:
            loss_of_all, grad_norm = self._of_all(losses, found)
        else:
            loss_of_all, grad_norm = None, None if found is None else float(found)
        # In fp16 a step that DeepSpeed skips is its loss scale on the way to its place.
        if self._num_skipped and self.args.fp16 and self._num_skipped < MOST_SKIPPED_STEPS:
            return grad_norm
        if skipped and self._max_skipped is not None and not self.args.fp16:  # by DeepSpeed itself
            self._note_left_out(self._at_step("gradients are no numbers"), losses)
            return None
        if loss_of_all is not None:
            if not math.isfinite(loss_of_all):
                self._stop(self._at_step(f"the loss is {loss_of_all}"), losses)
            usual = self._usual_loss.exceeded_by(loss_of_all)
            if usual is not None and not is_rehearsal():
                self._spiked(self._at_step(f"the loss leaps from {usual:.3g} to {loss_of_all:.3g}"), losses)
        if grad_norm is not None and not math.isfinite(grad_norm):
            self._stop(self._at_step(f"the gradient norm is {float(grad_norm)}"))
        self._num_left_out = 0
        return grad_norm

    def _of_all(
        self, losses: list[torch.Tensor], norm: torch.Tensor | float | None
    ) -> tuple[float, float | None]:
        """The loss of a step over all ranks, and its gradient norm, which is known to each.

        They also hear whether one is asked to leave: all stop, or none.
        """
        asked = torch.full_like(self._num_tokens, self._group.leave_request.why is not None)
        loss = sum(losses, torch.zeros_like(asked))
        # One exchange has all that a step is asked for, and one wait for the device the norm, too.
        total = self.accelerator.reduce(torch.stack((loss, asked, self._num_tokens)), reduction="sum")
        if isinstance(norm, torch.Tensor):
            total = torch.cat((total, norm.detach().to(total).reshape(1)))
        loss_sum, asking, num_tokens, *norms = total.tolist()
        self._num_tokens.zero_()
        self._leaves = asking > 0
        self.state.num_input_tokens_seen += round(num_tokens)
        grad_norm = norms[0] if isinstance(norm, torch.Tensor) else norm
        return loss_sum / self.args.world_size, grad_norm

    def _at_step(self, what: str) -> str:
        return f"{what} at step {self.state.global_step + 1}"

    def _leaves_out(self, loss: torch.Tensor) -> bool:
        """Whether the optimizer is to leave out the step that ends with a micro batch of that loss."""
        losses = [*self._losses, loss]
        loss_of_all, _ = self._of_all(losses, None)
        if math.isfinite(loss_of_all):
            usual = self._usual_loss.exceeded_by(loss_of_all)
            if usual is None:
                return False
            what = f"the loss leaps from {usual:.3g} to {loss_of_all:.3g}"
        else:
            what = f"the loss is {loss_of_all}"
        self._note_left_out(self._at_step(what), losses)
        self._left_out = True
        return True

    def _note_left_out(self, what: str, losses: list[torch.Tensor]) -> None:
        assert self._max_skipped is not None
        self._num_left_out += 1
        batch, most = self._batch_of(losses), self._max_skipped
        if self._num_left_out > most:
            raise RunError(
                f"{what}: {batch}; {quantity(most, 'step')} before it had to be left out, too",
                where=self.args.output_dir,
                hint="Look at these examples, lower training.learning_rate, or allow more with "
                "training.max_skipped_steps",
            )
        if self._group.ranks.is_main:
            console.note(
                f"zerokit: warning: {what}: {batch}. The step is left out "
                f"({self._num_left_out} in a row; {most + 1} end the run)"
            )

    def _batch_of(self, losses: list[torch.Tensor]) -> str:
        """The batch of a step that did most to its loss, with its examples; the same on every rank."""
        rank, micro = worst(self._group.gather_objects([float(loss) for loss in losses]))
        if self._train_sampler is None:
            return f"rank {rank}"
        args = self.args
        counts = {"accumulation": args.gradient_accumulation_steps, "ranks": args.world_size}
        counts |= {"batch_size": args.per_device_train_batch_size, "step": self.state.global_step}
        found = ""
        if self._group.ranks.is_main:  # which tells it: the others need not look for it
            found = named(rank, rows_of(self._train_sampler, rank, micro, **counts), self._places)
        return str(self._group.gather_objects(found)[0])

    def _spiked(self, what: str, losses: list[torch.Tensor]) -> None:
        batch = self._batch_of(losses)
        if self._on_spike == "stop":
            left = checkpoints(Path(self.args.output_dir))
            goes_on = f"; {left[-1]} is from before it" if left else ""
            raise RunError(
                f"{what}: {batch}",
                where=self.args.output_dir,
                hint=f"Look at these examples, or go on with --training.on_spike note{goes_on}",
            )
        if self._group.ranks.is_main:
            console.note(f"zerokit: warning: {what}: {batch}")

    def _stop(self, what: str, losses: list[torch.Tensor] | None = None) -> None:
        if is_rehearsal():  # whose numbers mean nothing
            return
        batch = "" if losses is None else self._batch_of(losses)
        rate = f"training.learning_rate ({self.args.learning_rate:g})"
        more = "more warmup_steps, or train in bf16" if self.args.fp16 else "more warmup_steps"
        raise RunError(
            f"the run has diverged: {what}",
            where=self.args.output_dir,
            hint=f"No model was replaced. Lower {rate}, or give it {more}"
            + (f". The batch that shows it: {batch}" if batch else ""),
        )
