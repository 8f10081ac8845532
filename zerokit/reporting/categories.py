"""Categories of memory: names, order and colours."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Category = Literal["parameters", "optimizer_states", "gradients", "buffers", "activations", "other"]
"""The purpose of bytes."""

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""Stacking order, from the bottom: what stays longest is lowest."""


class Look(NamedTuple):
    """How a category is drawn."""

    colour: str
    """Colours that most colour-blind people can distinguish (Okabe and Ito)."""
    hatch: str
    """Pattern for black and white."""


LOOKS: dict[Category, Look] = {
    "parameters": Look("#0072B2", ""),
    "optimizer_states": Look("#009E73", "///"),
    "gradients": Look("#D55E00", "\\\\\\"),
    "buffers": Look("#F0E442", "..."),
    "activations": Look("#56B4E9", "xxx"),
    "other": Look("#BBBBBB", "---"),
}


def category_words(category: str) -> str:
    """The category in words: ``"optimizer states"``."""
    return category.replace("_", " ")
