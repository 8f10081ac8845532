"""The tasks of fine-tuning: what their examples become, their losses and their metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Value
from pydantic import ValidationError

from zerokit.errors import DataError
from zerokit.recipe.model import Columns, DataSection, TaskSection, TaskType
from zerokit.training.examples import IGNORED, tokenize
from zerokit.training.shapes import detect_format
from zerokit.training.tasks import TASKS, task_of
from zerokit.training.tasks.labels import described_labels, known_labels

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task


def made(
    type_: TaskType, rows: list[dict[str, Any]] | Dataset, known: tuple[str, ...] = (), **section: Any
) -> Task:
    examples = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    return task_of(TaskSection(type=type_, **section)).with_labels_of(
        examples, Columns(), known, "data.train"
    )


def encoded(task: Task, rows: list[dict[str, Any]] | Dataset, tokenizer: Any) -> list[dict[str, Any]]:
    examples = rows if isinstance(rows, Dataset) else Dataset.from_list(rows)
    format_ = detect_format(examples.column_names, DataSection(train="x"), task.formats, where="data.train")
    encoder = task.encoder(tokenizer, format_, Columns())
    seq_len = task.section.seq_len
    return tokenize(examples, encoder, seq_len=seq_len, where="data.train").dataset.to_list()


def test_every_type_of_a_recipe_is_a_task() -> None:
    assert set(TASKS) == set(TaskType.__args__)  # type: ignore[attr-defined]


def test_a_key_of_another_task_is_refused() -> None:
    with pytest.raises(ValidationError, match="'packing' says nothing to sequence_classification"):
        TaskSection(type="sequence_classification", packing=True)


@pytest.mark.parametrize(
    ("values", "labels"),
    [(["b", "a", "b"], ("a", "b")), ([10, 9, 2], ("2", "9", "10")), ([True, False], ("false", "true"))],
)
def test_classes_are_those_of_the_training_data(values: list[Any], labels: tuple[str, ...]) -> None:
    rows = [{"text": "t", "label": value} for value in values]
    assert made("sequence_classification", rows).labels == labels


def test_classes_keep_the_names_of_the_data_set_and_the_ids_of_the_checkpoint(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    rows = Dataset.from_list([{"text": "a", "label": 1}, {"text": "b", "label": 1}], features=features)
    assert made("sequence_classification", rows).labels == ("neg", "pos")
    task = made("sequence_classification", rows, known=("pos", "unsure", "neg"))
    assert [row["labels"] for row in encoded(task, rows, tokenizer)] == [0, 0]
    keys = task.config_keys({}, tokenizer)
    assert keys["id2label"] == {0: "pos", 1: "unsure", 2: "neg"}
    assert keys["pad_token_id"] == tokenizer.pad_token_id
    assert "pad_token_id" not in task.config_keys({"pad_token_id": 0}, tokenizer)


def test_a_checkpoint_names_its_classes_or_not() -> None:
    assert known_labels({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}) == ()
    assert known_labels({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    assert known_labels({}) == known_labels({"id2label": {"1": "b"}}) == ()
    assert described_labels(("a", "b")) == "; 2 classes: a, b"


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (None, "example 3: 'label' is absent or null"),
        ("", "example 3: 'label' is empty, not a label"),
        ("goo", "example 3: 'label' is 'goo', a class that the model does not have. Did you mean 'good'?"),
    ],
)
def test_what_is_no_label_is_named_with_its_place(
    label: Any, message: str, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
    task = made("sequence_classification", rows)
    with pytest.raises(DataError) as caught:
        encoded(task, [*rows, {"text": "c", "label": label}], tokenizer)
    assert message in str(caught.value)


def test_numbers_with_a_fraction_and_one_class_alone_are_no_classes(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    with pytest.raises(DataError, match="every 'label' is 'x': there is nothing to tell apart"):
        made("sequence_classification", [{"text": "a", "label": "x"}] * 2)
    with pytest.raises(DataError, match="every 'label' is 'absent'"):
        made("sequence_classification", [{"text": "a", "label": 0.5}, {"text": "a", "label": 1.5}])


def test_the_loss_of_classes_is_the_models_own(tokenizer: PreTrainedTokenizerBase) -> None:
    """Summed, without blanks, and with the smoothing of torch."""
    task = made("sequence_classification", [{"text": "a", "label": label} for label in "abc"])
    logits = torch.randn(4, 3)
    labels = torch.tensor([2, 0, IGNORED, 1])

    def model(input_ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=logits)

    batch = {"input_ids": torch.zeros(4, 2), "labels": labels}
    for smoothing in (0.0, 0.1):
        expected = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)(logits, labels)
        loss, _ = task.loss(model, batch, smoothing)
        assert loss / task.num_targets(batch) == pytest.approx(expected)
    blank = {"input_ids": torch.zeros(4, 2), "labels": torch.full((4,), IGNORED)}
    assert (float(task.loss(model, blank)[0]), task.num_targets(blank)) == (0, 0)


def test_accuracy_and_f1_of_classes() -> None:
    """Of scikit-learn 1.7: accuracy_score, and f1_score(average="macro"), in which class 3 does not count."""
    task = made("sequence_classification", [{"text": "a", "label": label} for label in range(4)])
    truth, found = torch.tensor([0, 0, 0, 1, 1, 2, IGNORED]), torch.tensor([0, 0, 1, 1, 0, 0, 3])
    output = SimpleNamespace(logits=torch.nn.functional.one_hot(found, 4).float())
    any_: Any = None
    scores = task.scores(output, {"labels": truth}, any_, any_)
    metrics = task.metrics(scores)
    assert metrics == pytest.approx({"accuracy": 0.5, "f1": (4 / 7 + 1 / 2 + 0) / 3})
    none = task.scores(output, {"labels": torch.full((7,), IGNORED)}, any_, any_)
    assert len(none) == len(scores)
    assert sum(none) == 0


def test_a_collator_pads_labelled_texts_and_takes_blanks(tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [{"text": "abc", "label": "x"}, {"text": "ab" * 40, "label": "y"}]
    task = made("sequence_classification", rows, seq_len=16)
    first, second = encoded(task, rows, tokenizer)
    assert (len(second["input_ids"]), second["labels"]) == (16, 1)
    batch = task.collator(tokenizer, None)([first, second, task.blank()])
    assert batch["input_ids"].shape == (3, 16)
    assert batch["labels"].tolist() == [0, 1, IGNORED]
    text = "".join(part for line in task.marked(first, tokenizer) for part, _ in line)
    assert text == "label: xabc"
