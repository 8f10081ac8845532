"""Measures the held-out loss and the metrics of a task over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from zerokit.errors import RecipeError, did_you_mean

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task


class Evaluator:
    """Measures a model on held-out batches: every token, or example, has the same weight.

    transformers averages the means of the batches, which weighs a token by the batch that it is in.
    """

    def __init__(self, task: Task, sum_over_ranks: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._task, self._sum_over_ranks = task, sum_over_ranks
        self.metric_names: tuple[str, ...] = ()
        """Metrics of the last evaluation, the loss first."""

    def measure(
        self,
        engine: Any,
        model: Any,
        batches: Iterable[Mapping[str, Any]],
        tokenizer: PreTrainedTokenizerBase | Any,
        *,
        scored_batches: int | None = None,
    ) -> tuple[dict[str, float], int]:
        """The loss and the metrics, and the number of batches of this rank.

        Args:
            scored_batches: the first batches, of which metrics beside the loss are measured; None for all.
        """
        total = torch.zeros(2, dtype=torch.float64)  # sum of losses, their number, then scores
        num_batches = 0
        for inputs in batches:
            num_batches += 1
            with torch.no_grad():
                loss, output = self._task.loss(engine, inputs)
                is_scored = scored_batches is None or num_batches <= scored_batches
                scores = self._task.scores(output, inputs, model, tokenizer) if is_scored else ()
            sums = torch.tensor([float(loss), int(self._task.num_targets(inputs)), *scores], dtype=torch.float64)
            if num_batches == 1:
                total = sums
            else:
                total[: len(sums)] += sums
            del output  # the logits need much memory, and the next batch makes its own
        total = self._sum_over_ranks(total)
        metrics = {"loss": float(total[0] / total[1]), **self._task.metrics(total[2:].tolist())}
        self.metric_names = tuple(metrics)
        return metrics, num_batches

    def check_best_metric(self, best: str | None, metrics: dict[str, float], prefix: str) -> None:
        """Check that ``training.metric_for_best_model`` is one of the metrics (RecipeError on every rank)."""
        best = (best or "loss").removeprefix(f"{prefix}_")
        if best not in metrics:
            raise RecipeError(
                f"there is no metric '{best}' of {self._task.section.type}",
                where="training.metric_for_best_model",
                hint=did_you_mean(best, metrics),
            )
