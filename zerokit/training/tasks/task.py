"""What a task of fine-tuning is: its model class, its data, its collator, its loss and its metrics.

A task is one file with one subclass of :class:`Task`, listed in :mod:`zerokit.training.tasks`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from zerokit.checkpoint.pretrained import CAUSAL_LM, ModelKind
from zerokit.recipe.model import Columns, Format, TaskSection
from zerokit.training.examples import IGNORED, Encoder

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.data.row_dataset import RowDataset
    from zerokit.recipe import LoadedRecipe
    from zerokit.reporting.tables import StyledLine
    from zerokit.training.packing import Layout

    Collator = Callable[[list[dict[str, Any]]], Mapping[str, torch.Tensor]]


@dataclass(frozen=True)
class Task(ABC):
    """A task, for one run."""

    section: TaskSection
    labels: tuple[str, ...] = ()
    """The classes that it tells apart, by their ids; empty where there are none."""
    names: tuple[str, ...] | None = None
    """What the data set calls the numbers that stand for classes, where it has numbers and says so."""

    model: ClassVar[ModelKind] = CAUSAL_LM
    """The class of its models."""
    formats: ClassVar[tuple[Format, ...]]
    """What its examples can be, in the order in which their columns are tried."""
    peft_type: ClassVar[str | None]
    """peft's name for it, if it has one."""
    needs: ClassVar[str] = "eos"
    """The special token that its tokenizers must have: ``eos``, ``pad`` or ``mask``."""
    generates: ClassVar[bool] = False
    """Whether its models generate text, and so have a generation config."""
    sequences_per_example: ClassVar[int] = 1
    """That are in memory at once for each example of a batch."""
    counts: ClassVar[str] = "token"
    """What a loss is the mean over."""
    needs_reference: ClassVar[bool] = False
    """Whether its loss compares with what the untrained model says."""
    has_own_loss: ClassVar[bool] = True
    """Whether :meth:`loss` is its loss, or what the model's ``forward`` returns."""

    @abstractmethod
    def encoder(self, tokenizer: PreTrainedTokenizerBase, format_: Format, columns: Columns) -> Encoder:
        """What one example becomes."""

    @abstractmethod
    def collator(self, tokenizer: PreTrainedTokenizerBase, model: Any) -> Collator:
        """What makes a batch of examples; it also takes blanks.

        Args:
            tokenizer: for its padding token.
            model: the model, with its adapter.
        """

    @abstractmethod
    def marked(self, sequence: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[StyledLine]:
        """The lines in which a preview shows a sequence, with what is trained on marked."""

    def with_labels_of(
        self, examples: RowDataset, columns: Columns, known: Sequence[str], where: str
    ) -> Task:
        """This task with the classes that the training examples name.

        Args:
            examples: as loaded, of a format of the task.
            columns: their names.
            known: classes of the checkpoint, which stay where they have all that the examples name.
            where: the place of the data in the recipe, for errors.

        Raises:
            DataError: there are none to tell apart.
        """
        return self

    def for_model(self, config: PretrainedConfig, loaded: LoadedRecipe) -> Task:
        """This task as a model can do it.

        Args:
            config: the model's.
            loaded: the recipe.

        Raises:
            RecipeError: it cannot do what the recipe asks for.
        """
        return self

    def layout(self, batch_size: int, step_size: int) -> Layout | None:
        """How the examples of an optimizer step are spread over its micro batches; None: as they come.

        Args:
            batch_size: examples of a micro batch.
            step_size: examples of a step, over all ranks.
        """
        return None

    def layout_words(self, *, packed: bool) -> str:
        """What :meth:`layout` does, and how it is switched off, for people.

        Args:
            packed: whether sequences have several documents.
        """
        raise NotImplementedError

    def config_keys(self) -> dict[str, Any]:
        """Keys of the model's config that the task decides."""
        return {}

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase, where: str) -> None:
        """Refuse a tokenizer that lacks what the task asks of it.

        Args:
            tokenizer: as loaded.
            where: its place in the recipe, for errors.

        Raises:
            ModelError: it does.
        """
        return

    def complete(self, config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set what a model's config lacks for the task."""
        return

    def with_fixed_targets(self, held_out: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """The held-out examples with targets that are the same at each evaluation."""
        return held_out

    def blank(self) -> dict[str, Any]:
        """Features of an example that adds nothing to a loss."""
        return {"input_ids": [0], "labels": [IGNORED]}

    def pad_to(self) -> int | None:
        """What lengths are padded to a multiple of: one that tensor cores like.

        Never beyond the longest sequence, which may be all that the model has positions for.
        """
        return 8 if self.section.seq_len % 8 == 0 else None

    def model_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What of a batch the model is given, labels included."""
        return dict(inputs)

    def num_targets(self, inputs: Mapping[str, torch.Tensor]) -> int:
        """How many losses a batch has."""
        return int((inputs["labels"] != IGNORED).sum())

    def loss(
        self, model: Any, inputs: Mapping[str, torch.Tensor], smoothing: float = 0.0
    ) -> tuple[torch.Tensor, Any]:
        """The sum of the losses of a batch, and the model's output.

        Cross-entropy of the logits at each label that is not -100: (examples, classes) against (examples) or
        (examples, tokens, classes) against (examples, tokens).

        Args:
            model: the model, or the engine around it.
            inputs: a batch.
            smoothing: of the labels: the share of probability that is spread over all classes.
        """
        from torch.nn.functional import cross_entropy

        labels = inputs["labels"]
        output = model(**{name: values for name, values in inputs.items() if name != "labels"})
        is_target = labels != IGNORED  # selected first: what is left out needs no copy in float32
        logits = output.logits[is_target].float()
        return cross_entropy(logits, labels[is_target], reduction="sum", label_smoothing=smoothing), output

    def log_probabilities(self, model: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What a task that needs a reference compares with it: a row for each example."""
        raise NotImplementedError

    def scores(
        self, output: Any, inputs: Mapping[str, torch.Tensor], model: Any, tokenizer: PreTrainedTokenizerBase
    ) -> Sequence[float]:
        """What the metrics are made of, of one batch: numbers that add up over batches and ranks.

        Args:
            output: of :meth:`loss`.
            inputs: the batch, which may be of blanks alone.
            model: which made the output.
            tokenizer: the model's.
        """
        return ()

    def metrics(self, scores: Sequence[float]) -> dict[str, float]:
        """The metrics, by name, of the sums of :meth:`scores`."""
        return {}
