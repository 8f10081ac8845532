"""The classes of labelled examples: found in the training data, kept in the model's config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zerokit.errors import DataError, did_you_mean, visible
from zerokit.training.examples import UnusableError, described_value


def label_text(value: Any, names: Sequence[str] | None, column: str) -> str:
    """A label as the model's config has it.

    Args:
        value: as the data have it: a text, a whole number, true or false.
        names: of the classes, where the data set says how its numbers are called.
        column: where it stands.

    Raises:
        UnusableError: it is no label.
    """
    if value is None:
        raise UnusableError(f"'{column}' is absent or null", hint="Mend or remove that example")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        if names is None:
            return str(value)
        if 0 <= value < len(names):
            return names[value]
        raise UnusableError(
            f"'{column}' is {value}, and the data set has {len(names)} classes",
            hint="Mend or remove that example: an unlabelled split cannot be trained on",
        )
    if isinstance(value, str) and value.strip():
        return value
    what = "a number with a fraction" if isinstance(value, float) else described_value(value)
    raise UnusableError(
        f"'{column}' is {'empty' if isinstance(value, str) else what}, not a label",
        hint="Write a text or a whole number",
    )


def in_order(labels: Iterable[str]) -> tuple[str, ...]:
    """Each label once: numbers by their size, texts by the alphabet."""
    found = set(labels)
    if all(label.lstrip("-").isdecimal() for label in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def found_labels(values: Iterable[Any], column: str) -> tuple[str, ...]:
    """The labels among `values`, :func:`in_order`; what is none is named when its example is encoded."""
    found = []
    for value in values:
        with suppress(UnusableError):
            found.append(label_text(value, None, column))
    return in_order(found)


def names_of(feature: Any) -> tuple[str, ...] | None:
    """What a data set calls its classes: those of a column of `ClassLabel`, or of lists of it."""
    feature = getattr(feature, "feature", feature)
    names = getattr(feature, "names", None)
    return None if names is None else tuple(names)


def id_of(label: str, ids: Mapping[str, int], column: str) -> int:
    """The id of a label.

    Raises:
        UnusableError: the training data have none of it.
    """
    if label not in ids:
        raise UnusableError(
            f"'{column}' is '{label}', a class that the model does not have",
            hint=did_you_mean(label, list(ids)) or "Mend or remove that example",
        )
    return ids[label]


def check_classes(labels: tuple[str, ...], column: str, where: str) -> tuple[str, ...]:
    """`labels`, if there is something to tell apart.

    Raises:
        DataError: there is not.
    """
    if len(labels) < 2:
        raise DataError(
            f"every '{column}' is {labels[0] if labels else 'absent'!r}: there is nothing to tell apart",
            where=where,
            hint="Give it examples of at least two classes, or set data.columns.label",
        )
    return labels


def known_labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes that a checkpoint's config names, by their ids; none where nobody has named them."""
    names = config.get("id2label") or {}
    ordered = [str(names.get(str(index), "")) for index in range(len(names))]
    if not all(ordered):
        return ()
    is_unnamed = ordered == [f"LABEL_{index}" for index in range(len(ordered))]
    return () if is_unnamed else tuple(ordered)


_MOST_NAMED = 8


def described_labels(labels: Sequence[str]) -> str:
    """The classes for people, to follow what the examples are; empty where there are none."""
    if not labels:
        return ""
    more = f", and {len(labels) - _MOST_NAMED} more" if len(labels) > _MOST_NAMED else ""
    return f"; {len(labels)} classes: {', '.join(map(visible, labels[:_MOST_NAMED]))}{more}"


def config_of_labels(labels: Sequence[str]) -> dict[str, Any]:
    """The keys of a model's config that name its classes."""
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }
