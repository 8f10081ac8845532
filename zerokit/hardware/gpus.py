"""GPUs as data: `gpus.json` has each card with the source of every number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal

from zerokit.errors import ZerokitError, nearest
from zerokit.tables import table_of
from zerokit.units import GIB, MIB, format_bytes, parse_bytes

HAS_BF16 = (8, 0)
"""Compute capability of the first cards with bf16 matmuls; torch emulates them on older ones."""
_KEPT_BY_DRIVERS = 0.02
"""Share of the nominal memory (GB read as GiB) that torch does not report: the maximum of NVIDIA's cards with
known reports (0.8 % of a V100-32GB to 2.0 % of an RTX 5090), without cards that keep ECC in it."""

_MAKERS = ("nvidia", "geforce", "tesla", "amd", "instinct", "intel", "rtx")


@dataclass(frozen=True)
class Link:
    """The link between GPUs of a node, or between GPU and host."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    gb_s: float
    """10^9 bytes per second in one direction, by the vendor."""

    @property
    def joins_pairs(self) -> bool:
        """Whether it is a bridge between two cards."""
        return "pairs" in self.name


@dataclass(frozen=True)
class Node:
    """A rented machine with such GPUs."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    gpus: int
    ram_gib: int | None = None
    network_gbit_s: int | None = None
    """All network cards together."""


@dataclass(frozen=True)
class Price:
    """US dollars per GPU and hour, on demand: minimum and maximum seen, and a typical one if known."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    low: float
    high: float
    of: str
    """Date."""
    typical: float | None = None
    typical_of: str = ""
    """Date of `typical`."""

    @property
    def usual(self) -> float:
        """The typical price, else the geometric mean of minimum and maximum."""
        return self.typical or round(math.sqrt(self.low * self.high), 4)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card, or one die if a rank uses only that. None: unknown."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    also: tuple[str, ...] = ()
    """Other names, besides those that :func:`find_gpu` derives."""
    torch_name: str | None = None
    """`torch.cuda.get_device_name`."""
    platform: Literal["cuda", "rocm", "hpu", "cpu"] = "cuda"
    """cpu: a processor instead of a card; its operators are synchronous."""
    nominal_gb: int = 0
    """Memory that vendors print."""
    memory_mib: float | None = None
    """`torch.cuda.get_device_properties().total_memory`: nominal less the driver's share."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability."""
    multiprocessors: int | None = None
    l2_mib: int | None = None
    bandwidth_gb_s: float | None = None
    """Memory bandwidth, 10^9 bytes per second."""
    tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Dense matmul by dtype, with fp32 accumulation as in training; fp32: without tensor cores."""
    link: Link | None = None
    host_link: Link | None = None
    node: Node | None = None
    price: Price | None = None
    note: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Figure -> key of :func:`sources`."""

    @property
    def memory_bytes(self) -> int:
        """As torch reports it; an estimate if :attr:`memory_caveat` is set."""
        if self.memory_mib is not None:
            return round(self.memory_mib * MIB)
        return round(self.nominal_gb * (1 - _KEPT_BY_DRIVERS) * GIB)

    @property
    def half_precision(self) -> Literal["bf16", "fp16"]:
        """bf16, or fp16 on NVIDIA's cards before Ampere, where torch emulates bf16."""
        return "fp16" if self.capability is not None and self.capability < HAS_BF16 else "bf16"

    @property
    def memory_caveat(self) -> str | None:
        """The uncertainty of :attr:`memory_bytes`; None for torch's report and for a given size."""
        source = self.sources.get("memory")
        if source == "torch" or (source is None and self.memory_mib is not None):
            return None
        why = f"the nominal {self.nominal_gb} GB less {_KEPT_BY_DRIVERS:.0%} that drivers keep"
        if source is not None:
            why = sources()[source]
        return f"what torch reports of {self.name} is not published: {format_bytes(self.memory_bytes)} is {why}"

    def with_memory(self, num_bytes: int) -> Gpu:
        """The same card with another memory size. ZerokitError if it is below that of any GPU."""
        if num_bytes < MIB:
            message = f"{format_bytes(num_bytes)} is no GPU's memory"
            raise ZerokitError(message, where="--gpu-memory", hint="Write it like 80GiB")
        kept = {figure: source for figure, source in self.sources.items() if figure != "memory"}
        return replace(self, memory_mib=num_bytes / MIB, sources=kept)


def some_gpu(name: str | None, memory_bytes: int | None, *, timed: bool = False) -> Gpu | None:
    """The card of a name, a card with only its memory known, or a card with another memory size.

    Args:
        memory_bytes: of the card; None: its own.
        timed: whether times are needed too, for which memory alone is not enough.

    Raises:
        ZerokitError: there is no such card, or the memory size is invalid.
    """
    card = None if name is None else find_gpu(name, timed=timed)
    if memory_bytes is None:
        return card
    return (card or Gpu(name=f"a GPU with {format_bytes(memory_bytes)}")).with_memory(memory_bytes)


def gpus() -> tuple[Gpu, ...]:
    """All cards in file order: by maker, then by age and size."""
    return _read()[0]


def sources() -> Mapping[str, str]:
    """The sources behind the keys of :attr:`Gpu.sources`."""
    return _read()[1]


def bounds() -> Mapping[str, list[Any]]:
    """The plausible range of each number of a card, and its unit; other numbers are in a wrong unit."""
    return _read()[2]


def gpu_of_torch(torch_name: str) -> Gpu | None:
    """The card with this ``torch.cuda.get_device_name``; None if unknown."""
    return next((gpu for gpu in gpus() if gpu.torch_name == torch_name), None)


def find_gpu(name: str, *, timed: bool = False) -> Gpu:
    """The card called `name`: "H100", "rtx4090", "4090", "A100-80GB", "NVIDIA A100-SXM4-80GB".

    Case, blanks, hyphens, the maker's name, "RTX" and a final "GB" do not matter.

    Raises:
        ZerokitError: there is no such card, or several.
    """
    folded = _folded(name)
    found = _by_folded_name().get(folded)
    if found is not None:
        return found
    several = [gpu.name for gpu in gpus() if folded and _folded(gpu.name).startswith(folded)]
    if len(several) > 1:
        raise ZerokitError(f"'{name}' may be several GPUs", where="--gpu", hint=f"Choose one of {', '.join(several)}")
    known = [one.removeprefix("RTX ") for gpu in gpus() for one in (gpu.name, *gpu.also)]
    # A misspelled name keeps its letters or its number: 2080 is no typo of H200.
    letters, number = _letters_and_number(name)
    alike = [one for one in known if letters == (of := _letters_and_number(one))[0] or number == of[1]]
    close = several[0] if several else nearest(folded, alike)
    listed = f"Did you mean '{close}'?" if close else "'zerokit gpus' lists those that there are."
    alone = f"memory alone: --gpu-memory {_size_in(name) or '16GiB'}"
    hint = f"{listed} For another card give its {'figures: --hardware FILE' if timed else alone}"
    raise ZerokitError(f"there is no GPU '{name}'", where="--gpu", hint=hint)


def add_gpu(gpu: Gpu) -> None:
    """Have :func:`find_gpu` know a card of a hardware file, unless the catalogue has one of its name."""
    _by_folded_name().setdefault(_folded(gpu.name), gpu)


def _size_in(name: str) -> str | None:
    """`name` if it is a memory size."""
    is_size = name.strip()[-1:].isalpha()  # a number alone is rather a card's
    try:
        return name.strip() if is_size and parse_bytes(name) >= GIB else None
    except ZerokitError:
        return None


def _letters_and_number(name: str) -> tuple[str, str]:
    folded = _folded(name)
    return "".join(filter(str.isalpha, folded)), "".join(filter(str.isdigit, folded))


def matching_gpus(part: str) -> tuple[Gpu, ...]:
    """Cards with `part` in one of their names, as :func:`find_gpu` reads names. ZerokitError if there is none."""
    folded = _folded(part)
    found = tuple(gpu for gpu in gpus() if any(folded in _folded(name) for name in gpu_names(gpu)))
    if not found:
        raise ZerokitError(f"no GPU has '{part}' in its name", where="NAME", hint="Leave it out for all of them")
    return found


def gpu_names(gpu: Gpu) -> tuple[str, ...]:
    return (gpu.name, *gpu.also, *([gpu.torch_name] if gpu.torch_name else []))


@cache
def _read() -> tuple[tuple[Gpu, ...], Mapping[str, str], Mapping[str, list[Any]]]:
    from pydantic import TypeAdapter

    data = table_of(__file__)
    return TypeAdapter(tuple[Gpu, ...]).validate_python(data["gpus"]), data["sources"], data["bounds"]


@cache
def _by_folded_name() -> dict[str, Gpu]:
    return {_folded(name): gpu for gpu in gpus() for name in gpu_names(gpu)}


def _folded(name: str) -> str:
    folded = "".join(filter(str.isalnum, name.lower()))
    while (rest := next((folded.removeprefix(m) for m in _MAKERS if folded.startswith(m)), None)) is not None:
        folded = rest
    return folded.removesuffix("gb")
