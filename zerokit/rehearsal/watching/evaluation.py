"""The evaluation of transformers' Trainer, which comes later than a rehearsal ends.

It is run once on the largest batches of its data after the last step: its loop, what it keeps of the logits,
and the generation of `predict_with_generate`.
"""

from __future__ import annotations

from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.watching.batches import Batches

_TRAIN = Patch("transformers.trainer:Trainer", "train", "rehearse the evaluation that is to come")


class Evaluation:
    """Knows the Trainer that trains.

    Args:
        backend: the loaded library.
        batches: hands out the largest ones.
    """

    def __init__(self, backend: Backend, batches: Batches) -> None:
        self._backend = backend
        self._batches = batches
        self._trainer: Any = None
        self.problem: str | None = None
        """What the evaluation failed of."""
        self.not_rehearsed: list[str] = []
        """What is to be said of other data."""

    def install(self) -> None:
        """Watch the Trainer, once it is imported."""
        wrap(_TRAIN, self._train)

    def _train(self, train: Any, trainer: Any, *arguments: Any, **given: Any) -> Any:
        self._trainer = trainer
        asked = trainer.args
        if asked.max_steps > 0 and not getattr(asked, "eval_on_start", False):
            self._batches.most = asked.max_steps * asked.gradient_accumulation_steps
        return train(trainer, *arguments, **given)

    def rehearse(self) -> None:
        """Evaluate if the Trainer is going to, and look at the data that nobody has asked for."""
        self._evaluate()
        self.not_rehearsed = self._batches.never_asked()

    def _evaluate(self) -> None:
        trainer, self._trainer = self._trainer, None
        if trainer is None or not trainer.args.do_eval or trainer.eval_dataset is None:
            return
        self._batches.most = None
        trainer.model.zero_grad()  # as the Trainer does, after the step that this comes in
        self._backend.phase = "evaluation"
        try:
            with self._batches.only_the_largest():
                trainer.evaluate()
        except Exception as error:  # of metrics, say, that want all examples: what is computed is made up
            self.problem = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
        finally:
            self._backend.phase = "between"
