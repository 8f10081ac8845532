"""Which module one rank ran and another one skipped, from the modules that both have published."""

from __future__ import annotations

import json
from typing import NamedTuple

MODULES = "modules"
"""The entry of all modules that a rank has run, in their order."""


def skipped_module(first: tuple[int, bytes], other: tuple[int, bytes], *, is_stuck: bool = True) -> str:
    """Words and a hint about the first module in which two ranks differ; empty if they ran the same.

    Args:
        first: the number of a rank and its entry, which is empty without an engine.
        other: those of another rank.
        is_stuck: whether the ranks wait for each other. If not, they may only differ in modules that ZeRO-3
            gathers: it takes the parameters of one for those of the other.
    """
    if not first[1] or not other[1]:
        return ""
    ranks = [_Rank(rank, *json.loads(entry)) for rank, entry in (first, other)]
    one, two = ranks
    if one.names != two.names or not (is_stuck or one.uses_zero3):
        return ""  # stages of a pipeline
    number = next((i for i, (a, b) in enumerate(zip(one.passes, two.passes, strict=False)) if a != b), None)
    if number is not None:
        runs = [one.passes[number], two.passes[number]]
        place = next((i for i, (a, b) in enumerate(zip(*runs, strict=False)) if a != b), None)
        if place is not None:
            return _difference(ranks, [run[place:] for run in runs])
        # One of them did no more in this pass: it waits, or it has begun another pass.
        is_first = len(runs[0]) < len(runs[1])
        behind, ahead = (one, two) if is_first else (two, one)
        done = behind.passes[number]
        if len(behind.passes) > number + 1 and done and not done[-1] % 2:
            return _difference(ranks, [run[len(done) :] for run in runs])
        return _more_passes(behind, ahead, number + 1)
    longer, shorter = sorted(ranks, key=lambda rank: -len(rank.passes))
    return _more_passes(longer, shorter, len(shorter.passes)) if is_stuck else ""


class _Rank(NamedTuple):
    number: int
    names: list[str]
    lists: list[str]
    """Names of lists of modules."""
    passes: list[list[int]]
    """As of :class:`zerokit.rehearsal.watching.module_order.ModuleOrder`."""
    uses_zero3: bool


def _more_passes(longer: _Rank, shorter: _Rank, number: int) -> str:
    if len(longer.passes) <= number:
        return ""
    return (
        f"rank {longer.number} begins forward pass {number + 1}, and rank {shorter.number} does not. Call "
        "the engine as often on every rank: give each as many batches, such as with drop_last=True, and "
        "evaluate on all of them"
    )


def _difference(ranks: list[_Rank], rests: list[list[int]]) -> str:
    """What two ranks run from where they differ."""
    runs = [rest[0] if rest else -1 for rest in rests]
    ran = [ranks[0].names[run // 2] for run in runs]
    parent = _parent(ran[0])
    comes_later = runs[1] in rests[0] or not rests[1], runs[0] in rests[1] or not rests[0]
    if ranks[0].uses_zero3 and parent in ranks[0].lists and parent == _parent(ran[1]) and not any(comes_later):
        return (
            f"rank {ranks[0].number} runs '{ran[0]}' where rank {ranks[1].number} runs '{ran[1]}'. Call "
            "deepspeed.utils.set_z3_leaf_modules(model, [CLASS]) before deepspeed.initialize, with the class "
            f"of '{_parent(parent) or 'the model'}', so that all of '{parent}' are gathered at once"
        )
    # A rank that comes to the other one's module later runs something else before it.
    index = 0 if comes_later[0] else 1 if comes_later[1] else int(runs[0] > runs[1])
    run_by_other = [ranks[0].names[run // 2] for run in rests[1 - index]]
    name = _outermost(ran[index], run_by_other, ranks[0].lists)
    where = "" if runs[index] % 2 else " in the backward pass"
    return (
        f"rank {ranks[index].number} runs '{name}'{where}, and rank {ranks[1 - index].number} skips it. Run "
        "it on every rank, with a dummy input where there is none (add 0 times its output to the loss), or "
        "make batches of one kind on all ranks" + (_STAGE_2 if ranks[0].uses_zero3 else "")
    )


_STAGE_2 = ". ZeRO stage 2 helps only if the module is frozen: each rank has to have gradients of the same parameters"


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _outermost(name: str, run_by_other: list[str], lists: list[str]) -> str:
    """The module around `name`, which may be a parameter, of which the other rank runs nothing."""
    found = name
    while (parent := _parent(found)) and parent not in lists:
        if any(other == parent or other.startswith(f"{parent}.") for other in run_by_other):
            break
        found = parent
    return found
