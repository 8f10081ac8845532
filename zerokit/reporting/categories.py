"""The categories of memory: their names, their order and their looks, for estimates and rehearsals alike."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

Category = Literal["parameters", "optimizer_states", "gradients", "buffers", "activations", "other"]
"""What bytes are held for."""

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""As they are stacked, from the bottom: what stays longest lies lowest."""


class Look(NamedTuple):
    """How a category is drawn."""

    colour: str
    """Of those that most colour-blind people tell apart (Okabe and Ito)."""
    hatch: str
    """For black and white."""


LOOKS: dict[Category, Look] = {
    "parameters": Look("#0072B2", ""),
    "optimizer_states": Look("#009E73", "///"),
    "gradients": Look("#D55E00", "\\\\\\"),
    "buffers": Look("#F0E442", "..."),
    "activations": Look("#56B4E9", "xxx"),
    "other": Look("#BBBBBB", "---"),
}


def category_words(category: str) -> str:
    """The category as people say it: ``"optimizer states"``."""
    return category.replace("_", " ")
