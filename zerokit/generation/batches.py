"""Prompts dealt to ranks: batches of like lengths, and the same number of rounds for everyone.

Under ZeRO-3 every forward pass gathers parameters from all ranks, so a rank must not make fewer
``generate`` calls than another. Each rank therefore has a batch in each round; one without prompts
left has an empty batch, for which the engine runs a ghost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Batch = tuple[int, ...]
"""Indices of prompts that are generated together; empty for a rank that has run out."""


def deal(lengths: Sequence[int], *, batch_size: int, world_size: int) -> list[list[Batch]]:
    """Deal prompts into rounds of one batch per rank.

    Longest first, so that running out of memory happens in the first round; neighbours in length share
    a batch and a round, so that little is padded and ranks wait little for each other. Batches differ in
    size by one at most: five prompts on two ranks are 3 + 2, not 5 + 0.

    Args:
        lengths: tokens of each prompt.
        batch_size: prompts per batch, at most.
        world_size: number of ranks.

    Returns:
        ``rounds[r][rank]``: each index of `lengths` exactly once.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    num_rounds = -(-len(order) // (batch_size * world_size))
    num_batches = num_rounds * world_size
    small, larger_ones = divmod(len(order), num_batches)
    rounds: list[list[Batch]] = []
    start = 0
    for number in range(num_batches):
        end = start + small + (number < larger_ones)
        if number % world_size == 0:
            rounds.append([])
        rounds[-1].append(tuple(order[start:end]))
        start = end
    return rounds


def left_pad(sequences: Sequence[Sequence[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token sequences in front, where decoding goes on at their ends.

    Args:
        sequences: at least one, none of them empty.
        pad_token_id: what to pad with.

    Returns:
        token ids and attention mask (1 for tokens, 0 for padding), both int64 of shape
        [sequences, longest].
    """
    import torch

    longest = max(len(sequence) for sequence in sequences)
    gaps = [longest - len(sequence) for sequence in sequences]
    ids = [[pad_token_id] * gap + list(sequence) for gap, sequence in zip(gaps, sequences, strict=True)]
    mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
    return torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long)
