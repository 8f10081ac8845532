"""What the options for a GPU, or for its memory alone, name: several commands share them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.console import note
from zerokit.errors import ZerokitError

if TYPE_CHECKING:
    from zerokit.hardware.gpus import Gpu


def chosen_gpu(gpu: str | None, gpu_memory: str | None) -> Gpu | None:
    """The card that the options name, with another memory size if both are given.

    Raises:
        ZerokitError: there is no such card, or the size is not valid.
    """
    from zerokit.hardware.gpus import some_gpu

    return some_gpu(gpu, memory_size(gpu_memory, "--gpu-memory"))


def chosen_gpus(names: str | None, memory: str | None, option: str = "--gpu-memory") -> list[Gpu]:
    """The cards that ``--gpu h100,a100-80`` names; one card of a size for ``--gpu-memory`` alone.

    Raises:
        ZerokitError: there is no such card, the size is not valid, or it is given for several cards.
    """
    from zerokit.hardware.gpus import some_gpu

    size = memory_size(memory, option)
    several: list[str | None] = [None] if names is None else [*names.split(",")]
    if len(several) > 1 and size is not None:
        hint = "Give the memory, or names of cards"
        raise ZerokitError("one size is given for several cards", where=option, hint=hint)
    cards = dict.fromkeys(some_gpu(name, size) for name in several)
    return [card for card in cards if card is not None]


def note_caveat(gpu: Gpu | None) -> None:
    """Print on stderr what is uncertain about the memory of a card."""
    if gpu is not None and gpu.memory_caveat is not None:
        note(f"zerokit: note: {gpu.memory_caveat}")


def memory_size(text: str | None, option: str) -> int | None:
    """Read a size in bytes, such as 80GiB; None without a text.

    Raises:
        ZerokitError: not a size, or less than any memory.
    """
    from zerokit.units import MIB, parse_bytes

    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except ZerokitError as error:
        raise ZerokitError(error.message, where=option, hint=error.hint) from None
    if size < MIB:
        raise ZerokitError(f"'{text}' is less than a MiB", where=option, hint="Write it like 80GiB")
    return size
