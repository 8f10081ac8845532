"""The classes of labelled examples: found in the training data, stored in the model's config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from zerokit.data.encoding import value_kind
from zerokit.errors import DataError, did_you_mean, visible
from zerokit.recipe.model import Columns
from zerokit.training.examples import Encoder, UnusableError
from zerokit.training.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.data.row_dataset import RowDataset


class LabelledTask(Task):
    """A task with classes, which the model's config names."""

    needs = "pad"

    def config_keys(self) -> dict[str, Any]:
        return {
            "num_labels": len(self.labels),
            "id2label": dict(enumerate(self.labels)),
            "label2id": {label: index for index, label in enumerate(self.labels)},
        }


class LabelEncoder(Encoder):
    """Encodes examples with labels."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, columns: Columns, task: LabelledTask) -> None:
        self.tokenizer = tokenizer
        self.columns = columns
        self.seq_len = task.section.seq_len
        self._names = task.names
        self._ids = {label: index for index, label in enumerate(task.labels)}

    def label_id(self, value: Any, column: str) -> int:
        """The id of a label of the data; UnusableError if it is not a label, or not in the training data."""
        label = label_text(value, self._names, column)
        if label not in self._ids:
            raise UnusableError(
                f"'{column}' is '{label}', a class that the model does not have",
                hint=did_you_mean(label, list(self._ids)) or "Fix or remove that example",
            )
        return self._ids[label]


def label_text(value: Any, names: Sequence[str] | None, column: str) -> str:
    """A label as the model's config has it; UnusableError if it is not a label.

    Args:
        value: as in the data: a text, a whole number, true or false.
        names: class names, if the data set names its numbers.
    """
    if value is None or value != value:  # a table with an empty cell has numbers with fractions
        raise UnusableError(f"'{column}' is absent or null")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):
        if names is None:
            return str(value)
        if 0 <= value < len(names):
            return names[value]
        raise UnusableError(
            f"'{column}' is {value}, and the data set has {len(names)} classes",
            hint="Fix or remove that example: an unlabelled split cannot be trained on",
        )
    if isinstance(value, str) and value.strip():
        return value
    what = "a number with a fraction" if isinstance(value, float) else value_kind(value)
    raise UnusableError(
        f"'{column}' is {'empty' if isinstance(value, str) else what}, not a label",
        hint="Write a text or a whole number",
    )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Each label once: numbers by size, texts by alphabet."""
    found = set(labels)
    if all(re.fullmatch(r"-?\d{1,18}", label) for label in found):
        return tuple(sorted(found, key=lambda label: (int(label), label)))
    return tuple(sorted(found))


def found_labels(values: Iterable[Any], column: str) -> tuple[str, ...]:
    """The labels in `values`, :func:`in_order`. Other values are reported when their example is encoded."""
    found = set()
    for value in values:
        with suppress(UnusableError):
            found.add(label_text(value, None, column))
    return in_order(found)


def names_of(examples: RowDataset, column: str) -> tuple[str, ...] | None:
    """Class names of a column of `ClassLabel`, or of lists of it."""
    feature = examples.table.features.get(column)
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return None if names is None else tuple(names)


_MANY_CLASSES = 100
"""More classes need two examples each on average: a column of ids has about one."""


def classes_of(
    found: tuple[str, ...], known: Sequence[str], column: str, where: str, *, most: int | None = None
) -> tuple[str, ...]:
    """The classes of a model by id: those of its checkpoint if they include all labels of the data.

    DataError for one class only, or too many.

    Args:
        most: limit of classes; None if the data set names them.
    """
    if len(found) < 2:
        every = f"every '{column}' is {found[0]!r}: there is nothing to tell apart" if found else None
        raise DataError(
            every or f"no '{column}' is a text or a whole number, as the name of a class is",
            where=where,
            hint="Give it examples of at least two classes, or name the column of the labels in data.columns",
        )
    if set(found) <= set(known):
        return tuple(known)
    if most is not None and len(found) > max(most, _MANY_CLASSES):
        raise DataError(
            f"'{column}' has {len(found):,} different values, about one for each example: no classes",
            where=where,
            hint="Name the column of the classes in data.columns",
        )
    return found


def known_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Class names in a checkpoint's config, by id; empty if they are generic."""
    names = config.get("id2label") or {}
    ordered = [str(names.get(str(index), "")) for index in range(len(names))]
    if not all(ordered):
        return ()
    is_unnamed = ordered == [f"LABEL_{index}" for index in range(len(ordered))]
    return () if is_unnamed else tuple(ordered)


_MOST_NAMED = 8


def describe_labels(labels: Sequence[str]) -> str:
    """A message about the classes; empty without classes."""
    if not labels:
        return ""
    more = f", and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else ""
    return f"; {len(labels)} classes: {', '.join(map(visible, labels[:_MOST_NAMED]))}{more}"
