"""What sort of memory a term is: the categories of a rehearsal, so that both draw and count alike."""

from __future__ import annotations

from collections.abc import Iterable

from zerokit.memory import Term
from zerokit.reporting.categories import CATEGORIES, Category

_NAMES: dict[Category, tuple[str, ...]] = {
    "parameters": (
        "parameters",
        "persistent parameters",
        "parameter shards",
        "shards of single parameters",
        "the model as it is built or loaded",
        "output matrix before it is tied",
    ),
    "optimizer_states": ("optimizer states", "fp32 copy of the parameters"),
    "gradients": (
        "gradients",
        "gradient being made",
        "gradient of the tied embedding",
        "gradients in the optimizer's step",
        "fp32 gradient partition",
        "fp32 gradients",
        "fp32 gradients of the whole model",
        "fp32 copy of a gradient",
        "gradient shards",
        "gradient shards on their way to the host",
        "gradients of zeros",
        "accumulated gradients",
    ),
    "buffers": (
        "reduce bucket",
        "gathered parameters",
        "buffers of parameters being gathered",
        "shards copied to the GPU",
        "temporary tensors of the optimizer",
        "flattened copy of gradients to reduce",
        "flat copy of the parameters",
        "clones of parameters",
        "fp64 copy for the gradient norm",
        "test for overflow",
        "buffer for offloaded gradients",
        "buffer for one gradient",
        "16-bit copy on its way to the GPU",
        "copies in the making",
        "buffers for optimizer states on NVMe",
        "buffers for parameters on NVMe",
        "buffer for writing parameters to NVMe",
        "pinned memory that torch keeps",
    ),
    "activations": (
        "activations",
        "inputs of checkpointed layers",
        "working memory of one layer",
        "gradients of activations",
        "logits and loss",
        "logits of one token",
        "cache of keys and values",
    ),
    "other": ("cuBLAS workspaces",),
}
_BY_NAME = {name: category for category, names in _NAMES.items() for name in names}


def category_of(term: Term) -> Category:
    """By its name; ``other`` for one that is not known here."""
    return _BY_NAME.get(term.name, "other")


def by_category(terms: Iterable[Term]) -> dict[Category, int]:
    """Bytes of each category, all of them, in the order in which they are stacked."""
    sums = dict.fromkeys(CATEGORIES, 0)
    for term in terms:
        sums[category_of(term)] += term.bytes
    return sums
