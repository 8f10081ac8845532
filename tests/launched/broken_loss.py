"""A loss that is no number, or high, in the batches with an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


@contextmanager
def broken(factor: str, answer: str) -> Iterator[None]:
    """The loss of batches with that answer is so many times as high."""
    from transformers import AutoTokenizer, Trainer

    from zerokit.training.trainer import ZeroTrainer

    original, tokenizer = ZeroTrainer.compute_loss, AutoTokenizer.from_pretrained("model")

    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(self, model, inputs, *args, **kwargs)
        texts = tokenizer.batch_decode(inputs["input_ids"])
        return loss * float(factor) if any(answer in text for text in texts) else loss

    assert issubclass(ZeroTrainer, Trainer)
    with patch.object(ZeroTrainer, "compute_loss", compute_loss):
        yield
