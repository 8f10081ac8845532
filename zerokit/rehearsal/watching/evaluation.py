"""The evaluation of transformers' Trainer, which is run once after the last step on the largest batches."""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.watching.batches import BatchWatcher
from zerokit.rehearsal.watching.watcher import Watcher

_TRAIN = Patch("transformers.trainer:Trainer", "train", "rehearse the evaluation that is to come")

_MOST_KEPT = 32
"""Batches of an evaluation that keeps what the model returns."""


class EvaluationWatcher(Watcher):
    """Follows the Trainer that trains; `batches` hands out the largest ones."""

    def __init__(self, backend: Backend, batches: BatchWatcher) -> None:
        self._backend = backend
        self._batches = batches
        self._trainer: Any = None
        self.problem: str | None = None
        """Why the evaluation failed."""
        self.not_kept: str | None = None
        """A warning about results that the evaluation keeps until its end."""
        self.not_rehearsed: list[str] = []
        """Warnings about other data."""

    def on_process_start(self) -> None:
        wrap(_TRAIN, self._train)

    def _train(self, train: Any, trainer: Any, *arguments: Any, **given: Any) -> Any:
        self._trainer = trainer
        asked = trainer.args
        if asked.max_steps > 0 and not getattr(asked, "eval_on_start", False):
            self._batches.most = asked.max_steps * asked.gradient_accumulation_steps
        return train(trainer, *arguments, **given)

    def on_run_end(self) -> None:
        """Evaluate if the Trainer is going to, and search data that was never requested."""
        self._evaluate()
        self.not_rehearsed = [*filter(None, [self.not_kept]), *self._batches.never_asked()]

    def _evaluate(self) -> None:
        trainer, self._trainer = self._trainer, None
        if trainer is None or not trainer.args.do_eval or trainer.eval_dataset is None:
            return
        self._batches.most = None
        keeps = trainer.compute_metrics is not None and not trainer.args.prediction_loss_only
        trainer.model.zero_grad()  # as the Trainer does, after the step that this comes in
        self._backend.phase = "evaluation"
        try:
            with self._batches.only_the_largest(at_least=_MOST_KEPT if keeps else 1):
                trainer.evaluate()
        except Exception as error:  # such as of metrics that need all examples: computed values are made up
            self.problem = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        finally:
            self._backend.phase = "between"
        batches = max((one.scan.of or 0 for one in self._batches.evaluated if one.scan is not None), default=0)
        if keeps and batches > _MOST_KEPT and trainer.args.eval_accumulation_steps is None:
            self.not_kept = (
                f"compute_metrics has the GPU keep what the model returns for all {batches:,} batches of the "
                f"evaluation; the figures hold that of {_MOST_KEPT}. eval_accumulation_steps moves it to the "
                "host, preprocess_logits_for_metrics makes it less"
            )
