"""Categories of memory: names, order and colours."""

from __future__ import annotations

from typing import Literal, get_args

Category = Literal["parameters", "optimizer_states", "gradients", "buffers", "activations", "other"]
"""The purpose of bytes."""

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""Stacking order, from the bottom: what stays longest is lowest."""

COLOURS: dict[str, str] = {
    "parameters": "#0072b2",
    "optimizer_states": "#009e73",
    "gradients": "#d55e00",
    "buffers": "#f0e442",
    "activations": "#56b4e9",
    "other": "#bbbbbb",
}
"""Colours that most colour-blind people can distinguish (Okabe and Ito 2008)."""


def category_words(category: str) -> str:
    """The category in words: ``"optimizer states"``."""
    return category.replace("_", " ")
