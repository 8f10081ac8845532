"""How large a batch is, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.rehearsal.report.report import BatchSize, Unit

_DEEPEST = 6
"""Levels of lists and dictionaries that are looked into."""


class _Leaf:
    """A tensor, an array, a text, or a list of numbers."""

    def __init__(self, name: str, shape: tuple[int, ...], itemsize: int, unit: Unit) -> None:
        self.name = name
        self.shape = shape
        self.unit = unit
        self.elements = 1
        for size in shape:
            self.elements *= size
        self.bytes = self.elements * itemsize

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """How well it shows the length of a batch: the largest token ids, else the largest of all."""
        is_tokens = self.unit != "values" and len(self.shape) in (1, 2)
        return is_tokens and "input_ids" in self.name, is_tokens and self.shape[-1:] != (1,), self.bytes


def measure(batch: Any) -> BatchSize:
    """The size of `batch`: tensors and arrays, texts and lists of numbers in lists and dictionaries."""
    together: dict[str, list[_Leaf]] = {}
    for leaf in _leaves(batch, "", 0):
        together.setdefault(leaf.name, []).append(leaf)
    whole = sum(leaf.bytes for leaves in together.values() for leaf in leaves)
    rows = max((_rows(leaves) for leaves in together.values()), key=lambda one: one[0].rank, default=None)
    if rows is None:
        return BatchSize(shape=[], unit="values", tokens=0, bytes=0)
    leaf, elements = rows
    return BatchSize(shape=list(leaf.shape), unit=leaf.unit, tokens=elements, bytes=whole)


def _rows(leaves: list[_Leaf]) -> tuple[_Leaf, int]:
    """Examples that are not collated into one tensor yet, as one; and all their elements."""
    elements = sum(leaf.elements for leaf in leaves)
    if len(leaves) == 1:
        leaf = leaves[0]
        # One dimension of integers is one number for each example, unless it is called ids.
        is_row = len(leaf.shape) == 1 and "input_ids" not in leaf.name and leaf.unit == "tokens"
        return (_Leaf(leaf.name, leaf.shape, 1, "values") if is_row else leaf), elements
    longest = max(leaves, key=lambda leaf: leaf.elements)
    return _Leaf(longest.name, (len(leaves), *longest.shape), 1, longest.unit), elements


def _leaves(item: Any, name: str, depth: int) -> Iterator[_Leaf]:
    if depth > _DEEPEST or item is None:
        return
    shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
    if isinstance(item, str):
        yield _Leaf(name, (len(item),), 1, "characters")
    elif isinstance(shape, tuple) and dtype is not None:
        kind = str(dtype)
        unit: Unit = "tokens" if "int" in kind and "uint" not in kind and len(shape) <= 2 else "values"
        yield _Leaf(name, tuple(int(size) for size in shape), int(dtype.itemsize), unit)
    elif isinstance(item, Mapping):
        for key, value in item.items():
            yield from _leaves(value, str(key), depth + 1)
    elif isinstance(item, list | tuple):
        if item and all(isinstance(value, int | float) for value in item):
            yield _Leaf(name, (len(item),), 8, "tokens" if isinstance(item[0], int) else "values")
        else:
            # Fields differ by their places, examples are alike; batches of fields may be in a list.
            are_fields = isinstance(item, tuple) or any(len(getattr(one, "shape", ())) > 1 for one in item)
            for place, value in enumerate(item):
                yield from _leaves(value, f"{name}.{place}" if are_fields else name, depth + 1)
    elif hasattr(item, "__dict__"):
        for key, value in vars(item).items():
            yield from _leaves(value, key, depth + 1)
