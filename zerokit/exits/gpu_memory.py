"""Explains a GPU that ran out of memory, from the numbers in torch's message."""

import re
from collections.abc import Mapping, Sequence

from zerokit.hardware.non_torch_memory import EXPANDABLE_SEGMENTS
from zerokit.tables import table_of
from zerokit.units import format_bytes

_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"(\d{1,9}(?:\.\d{1,9})?) ?(bytes|[KMGT]iB)"
_TABLE = table_of(__file__)
_FIGURES: Mapping[str, Sequence[str]] = _TABLE["figures"]
"""torch's messages in c10/cuda/CUDACachingAllocator.cpp: today, and before 2.1."""
_PHASES: Mapping[str, str] = _TABLE["phases"]
"""Phase of a run -> words in a line of a traceback that shows it."""
_MOST_CHANGES = 3


def explain(line: str, frames: Sequence[str]) -> tuple[str, str]:
    """What happened, and what to change.

    Args:
        line: with the words "out of memory. Tried to allocate".
        frames: lines of the traceback above it.
    """
    figures = _figures(line)
    asked = _bytes(line, r"Tried to allocate {}")
    message = f"a GPU ran out of memory in {_phase(frames)}: {_shown(asked)} more were requested"
    if {"total", "free"} <= figures.keys():
        message += f", and {_shown(figures['free'])} of {_shown(figures['total'])} were free"
    idle = figures.get("reserved but not allocated")
    if idle is None and "reserved" in figures and "allocated" in figures:
        idle = figures["reserved"] - figures["allocated"]
    own = figures.get("in use", figures.get("reserved"))
    if own is not None and {"total", "free"} <= figures.keys():
        others = figures["total"] - figures["free"] - own
        if others > max(figures["total"] // 10, 2 << 30):
            return message, f"Another process holds about {_shown(others)} of it: see nvidia-smi, and end it"
    if idle is not None and asked is not None and idle >= asked:
        return message, (
            f"{_shown(idle)} are reserved, but fragmented: set {EXPANDABLE_SEGMENTS}; then {_changes(frames)}"
        )
    changes = _changes(frames)
    return message, changes[0].upper() + changes[1:]


def explain_pinning(frames: Sequence[str]) -> tuple[str, str] | None:
    """What happened, and what to change, if host memory could not be pinned; None if GPU memory ran out.

    Args:
        frames: lines of the traceback above "CUDA error: out of memory".
    """
    # A data loader pins memory too, in a thread that also needs GPU memory.
    is_offload = any("/deepspeed/" in frame for frame in frames)
    if not is_offload or not any(re.search(r"\bpin_memory\(|, in pin_memory\b", frame) for frame in frames):
        return None
    return (
        "host memory could not be pinned for the GPU: CUDA also calls that out of memory",
        "Set pin_memory: false in offload_optimizer and offload_param, offload less, or give the "
        "host more memory; under WSL, .wslconfig sets its memory, and Windows pins only a part of it",
    )


def _changes(frames: Sequence[str]) -> str:
    """The changes to try first, cheapest first."""
    at = "".join(frames)
    of_states = re.search(r"initialize|\.step\(|_init_|\.to\(|from_pretrained", at) and "backward" not in at
    changes = []
    if not of_states:
        changes += ["half the micro-batch and twice the gradient accumulation", "gradient_checkpointing"]
    if re.search(r"cross_entropy|logits|lm_head", at):
        changes.append("a chunked loss (use_liger_kernel), because the logits did not fit")
    changes += ["ZeRO stage 3", "offload_optimizer to the CPU", "shorter sequences, or more or larger GPUs"]
    words = "; ".join(changes[:_MOST_CHANGES])
    return f"try in this order: {words}. 'zerokit estimate' shows beforehand whether it fits"


def _phase(frames: Sequence[str]) -> str:
    """The phase of a run, from the innermost traceback line that shows it."""
    for frame in reversed(frames):
        for phase, words in _PHASES.items():
            if re.search(words, frame.rstrip()):
                return phase
    return "a step"


def _figures(line: str) -> dict[str, int]:
    found = {}
    for name, patterns in _FIGURES.items():
        value = next((size for pattern in patterns if (size := _bytes(line, pattern)) is not None), None)
        if value is not None:
            found[name] = value
    return found


def _bytes(line: str, pattern: str) -> int | None:
    match = re.search(pattern.replace("{}", _SIZE), line)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def _shown(size: int | None) -> str:
    return "memory" if size is None else format_bytes(size)
