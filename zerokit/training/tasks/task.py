"""The base class of tasks: model class, data, collator, loss and metrics.

A task is one file with one subclass of :class:`Task`, listed in :mod:`zerokit.training.tasks`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zerokit.checkpoint.pretrained import CAUSAL_LM, ModelKind
from zerokit.errors import RecipeError
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import Columns, Format, TaskSection
from zerokit.reporting.tables import StyledLine
from zerokit.training.examples import IGNORED, Encoder
from zerokit.training.packing import Layout

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.data.row_dataset import RowDataset

Collator = Callable[[list[dict[str, Any]]], Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True)
class Task(ABC):
    """A task, for one run."""

    section: TaskSection
    labels: tuple[str, ...] = ()
    """Class names by id; empty without classes."""
    names: tuple[str, ...] | None = None
    """Class names of the data set, if it has numbers and names them."""
    has_router_loss: bool = False
    """Whether the model adds a router loss to the loss of its labels."""

    model: ClassVar[ModelKind] = CAUSAL_LM
    """The class of its models."""
    formats: ClassVar[tuple[Format, ...]]
    """Formats of examples, in the order to try."""
    peft_type: ClassVar[str | None]
    """peft's name of the task, if it has one."""
    needs: ClassVar[str] = "eos"
    """The special token that its tokenizers must have: ``eos``, ``pad`` or ``mask``."""
    generates: ClassVar[bool] = False
    """Whether its models generate text, and so have a generation config."""
    sequences_per_example: ClassVar[int] = 1
    """Sequences in memory for each example of a batch."""
    counts: ClassVar[str] = "token"
    """What the loss is averaged over."""
    needs_reference: ClassVar[bool] = False
    """Whether the loss needs log probabilities of the untrained model."""

    @abstractmethod
    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        """The encoder of examples."""

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        """The collator, which accepts blanks, too."""

    @abstractmethod
    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        """Lines of a preview of a sequence, with trained tokens marked."""

    def with_labels_of(self, examples: RowDataset, columns: Columns, known: Sequence[str], where: str) -> Task:
        """This task with the classes of the training examples; DataError if there are not enough.

        Args:
            known: classes of the checkpoint, which are kept if they include all labels of the examples.
        """
        return self

    def for_model(self, config: PretrainedConfig, loaded: LoadedRecipe) -> Task:
        """This task, adapted to a model. RecipeError if the model does not support a key of the recipe."""
        if uses_router_loss(config):
            raise RecipeError(
                f"the model's config sets output_router_logits, and {self.section.type} adds no router loss",
                where=loaded.where("model", "path" if loaded.recipe.model.path else "from_config"),
                hint="Set output_router_logits to false in the model's config",
            )
        return self

    def layout(self, batch_size: int, step_size: int) -> Layout | None:
        """How the examples of a step are distributed over micro batches; None keeps their order."""
        return None

    def layout_words(self, padding: str, *, packed: bool) -> str:
        """A message about :meth:`layout`.

        Args:
            padding: the shares of padding, in words.
            packed: whether sequences have several documents.
        """
        raise NotImplementedError

    def config_keys(self) -> dict[str, Any]:
        """Keys of the model's config that the task sets."""
        return {}

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        """Refuse a tokenizer that lacks what the task needs (ModelError)."""
        return

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Complete a model's config for the task."""
        return

    def with_fixed_targets(self, held_out: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """The held-out examples with targets that are the same at each evaluation."""
        return held_out

    def blank(self) -> dict[str, Any]:
        """Features of an example that adds nothing to a loss."""
        return {"input_ids": [0], "labels": [IGNORED]}

    def pad_to(self) -> int | None:
        """Lengths are padded to a multiple of it for tensor cores, but not beyond the longest sequence."""
        return 8 if self.section.seq_len % 8 == 0 else None

    def model_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a batch that the model gets, labels included."""
        return dict(inputs)

    def targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The labels of a batch; each that is not -100 has a loss."""
        return inputs["labels"]

    def num_targets(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Number of losses of a batch, as a tensor on its device, so that nothing waits for it."""
        return (self.targets(inputs) != IGNORED).sum()

    def at_targets(self, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The logits that have a label, and these labels: (targets, classes) and (targets,)."""
        is_target = labels != IGNORED
        return logits[is_target], labels[is_target]

    def loss(self, model: Any, inputs: Mapping[str, torch.Tensor], smoothing: float = 0.0) -> tuple[torch.Tensor, Any]:
        """The sum of the losses of a batch, and the model's output.

        Cross-entropy of the logits at each label that is not -100: (examples, classes) against (examples) or
        (examples, tokens, classes) against (examples, tokens). A router loss, which is a mean over the tokens
        of the batch, counts once for each label: its weight in a step is the batch's share of the labels.

        Args:
            smoothing: share of probability that is spread over all classes.
        """
        from torch.nn.functional import cross_entropy

        given = self.model_inputs(inputs)
        labels = given["labels"] if self.has_router_loss else given.pop("labels")
        output = model(**given)
        # Selected first: what is left out needs no copy in float32.
        logits, labels = self.at_targets(output.logits, labels)
        logits = logits.float()
        loss = cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        if self.has_router_loss:
            router_loss = output.loss - cross_entropy(logits, labels)
            loss = loss + sum_from_mean(router_loss, self.num_targets(inputs))
        return loss, output

    def log_probabilities(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Log probabilities to compare with the reference: a row for each example."""
        raise NotImplementedError

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """Sums for the metrics of one batch, which may have only blanks; they add up over batches."""
        return ()

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The metrics by name, from the sums of :meth:`scores`; nan without examples."""
        return {}


def uses_router_loss(config: PretrainedConfig) -> bool:
    """Whether a model of this config adds a router loss to the loss of its labels."""
    return bool(getattr(config.get_text_config(decoder=True), "output_router_logits", False))


def ratio(part: float, whole: float) -> float:
    """`part` / `whole`, or nan if `whole` is 0: a virtual rank may see no held-out example."""
    return part / whole if whole else math.nan


def sum_from_mean(mean: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The sum of losses, from their mean and their number; 0 if there are none and the mean is NaN."""
    import torch

    return torch.where(targets > 0, mean, 0.0) * targets
