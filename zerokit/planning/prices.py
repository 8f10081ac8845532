"""Prices of GPUs: what zerokit brings, what the user gives, and what ``zerokit prices update`` fetched.

Only :func:`update` uses the network.
"""

from __future__ import annotations

import csv
import io
import re
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from statistics import median_low
from typing import NamedTuple

from zerokit.data.files import opened_text
from zerokit.documents import is_file, unreadable_reason
from zerokit.errors import ZerokitError, printable
from zerokit.files import cache_folder, write_file
from zerokit.hardware.gpus import Gpu, Price, find_gpu, gpus, sources
from zerokit.planning.report import PriceUsed
from zerokit.units import GIB

CACHE_FILE = "prices.csv"
"""In zerokit's cache folder."""
_MOST_BYTES = 64 << 20
_MOST_GPUS, _MOST_USD = 64, 10_000
"""Of one machine, and of its hour; larger numbers are mistakes."""
_TIMEOUT_SECONDS = 60.0
"""Of a connection of ``zerokit prices update`` that gives nothing."""
_MEMORY_TOLERANCE = 0.15
"""Providers round GPU memory differently: a B200 has 180 or 192 GB. An H100 NVL (94 GB) is another card."""
_PCIE = re.compile(r"pcie|^(standard_)?nc\d", re.IGNORECASE)
"""In instance names: Azure's NC machines have the PCIe cards, its ND machines the SXM cards."""
_SUFFIX = re.compile(r"[ _-](mega|nvlink|sxm\d?|pcie|\d+gb?)\b", re.IGNORECASE)
"""What catalogues add to names of cards; its meaning is read separately."""


@dataclass(frozen=True)
class Machine:
    """A row of a price file: a machine that can be rented."""

    gpu: Gpu
    num_gpus: int
    usd_per_hour: float
    """The whole machine."""
    spot: bool
    provider: str
    host_memory_gib: float | None
    date: str
    source: str

    @property
    def usd_per_gpu_hour(self) -> float:
        """Price of one GPU."""
        return self.usd_per_hour / self.num_gpus


_COLUMNS = tuple(one.name for one in fields(Machine))
"""Of a price file of ours; the first three are needed."""


@dataclass(frozen=True)
class CardPrice:
    """The one price of a card that a plan uses."""

    gpu: Gpu
    usd_per_gpu_hour: float
    date: str
    source: str
    low: float | None = None
    """Lowest seen; None: unknown."""
    high: float | None = None
    counts: frozenset[int] = frozenset()
    """How many GPUs the machines for sale have; empty: unknown."""
    host_bytes: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Memory of machines by their number of GPUs, where it is known."""
    usd_by_count: Mapping[int, float] = field(default_factory=dict, hash=False)
    """US dollars per GPU and hour of machines by their number of GPUs: the lower median of the providers."""

    @property
    def used(self) -> PriceUsed:
        """The price as reports show it."""
        names = ("usd_per_gpu_hour", "date", "source", "low", "high")
        return PriceUsed(gpu=self.gpu.name, **{name: getattr(self, name) for name in names})


def load_prices(given: Sequence[str] = (), file: Path | None = None, *, spot: bool = False) -> dict[str, CardPrice]:
    """The price of each card by its name in the catalogue of cards.

    ``given`` wins over `file`. Without a file: over the cache of ``zerokit prices update``, over the prices
    that zerokit brings, which are on demand.

    Args:
        given: ``--price``, each ``CARD=USD`` per GPU and hour.
        file: ``--prices``: a catalogue of gpuhunt or SkyPilot, or a file with :data:`_COLUMNS`.

    Raises:
        ZerokitError: a price is no number, a card is unknown, a file cannot be read or has no such price.
    """
    cache = cache_folder() / CACHE_FILE
    if file is not None:
        found = card_prices(read_price_file(file), spot=spot)
        if not found:
            kind = "spot price" if spot else "price on demand"
            hint = "Give the file of another provider" + ("" if spot else ", or --spot")
            raise ZerokitError(f"has no {kind} of a known GPU", where=file, hint=hint)
    else:
        found = {} if spot else {gpu.name: _bundled_price(gpu, gpu.price) for gpu in gpus() if gpu.price}
        if cache.is_file():
            found |= card_prices(read_price_file(cache), spot=spot)
    for text in given:
        name, _, number = text.partition("=")
        try:
            gpu = find_gpu(name, timed=True)
        except ZerokitError as error:
            raise ZerokitError(error.message, where="--price", hint=error.hint) from None
        usd = _number(number.strip().removeprefix("$"))
        if usd is None:
            hint = f"Write the US dollars of one GPU for an hour, as in {name.strip()}=2.49"
            raise ZerokitError(f"'{text}' has no price", where="--price", hint=hint)
        found[gpu.name] = CardPrice(gpu, usd, _today(), "--price")
    if not found:
        hint = "Run zerokit prices update; zerokit plan accepts --prices FILE and --price CARD=USD, too"
        raise ZerokitError("no spot prices are known", where="--spot", hint=hint)
    return found


def _bundled_price(gpu: Gpu, price: Price) -> CardPrice:
    source = sources()[gpu.sources["typical_price" if price.typical else "price"]]
    if price.typical is None and price.low < price.high:
        source += ": geometric mean of the lowest and the highest"
    return CardPrice(gpu, price.usual, price.typical_of or price.of, source, price.low, price.high)


def _number(text: str, most: float = _MOST_USD) -> float | None:
    with suppress(ValueError):
        return number if 0 <= (number := float(text)) <= most else None
    return None


def card_prices(machines: Iterable[Machine], *, spot: bool = False) -> dict[str, CardPrice]:
    """One price for each card: the median of the providers (of two, the lower).

    A provider's price is that of its cheapest machine with its largest number of such GPUs; `usd_by_count`
    has those of other machines.
    """
    by_card: dict[str, list[Machine]] = {}
    for machine in sorted(machines, key=lambda one: (-one.num_gpus, one.usd_per_hour)):
        if machine.spot == spot:
            by_card.setdefault(machine.gpu.name, []).append(machine)
    found = {}
    for name, sold in by_card.items():
        providers = {machine.provider: machine for machine in reversed(sold)}
        prices = [machine.usd_per_gpu_hour for machine in sold]
        chosen = sorted(providers.values(), key=lambda one: one.usd_per_gpu_hour)[(len(providers) - 1) // 2]
        several = f", median of {len(providers)} providers" if len(providers) > 1 else ""
        by_count: dict[int, dict[str, float]] = {}
        for machine in reversed(sold):  # the cheapest of a provider comes last
            by_count.setdefault(machine.num_gpus, {})[machine.provider] = machine.usd_per_gpu_hour
        memory: dict[int, list[float]] = {}
        for machine in sold:
            if machine.host_memory_gib is not None:
                memory.setdefault(machine.num_gpus, []).append(machine.host_memory_gib)
        found[name] = CardPrice(
            *(chosen.gpu, chosen.usd_per_gpu_hour, chosen.date),
            *(f"{chosen.source}: {chosen.provider}{several}", min(prices), max(prices)),
            frozenset(machine.num_gpus for machine in sold),
            {number: round(median_low(sizes) * GIB) for number, sizes in memory.items()},
            {number: median_low(cheapest.values()) for number, cheapest in by_count.items()},
        )
    return found


# Files ---------------------------------------------------------------------------------------------------


class _Format(NamedTuple):
    """Columns of a price file."""

    card: str
    num_gpus: str
    host_memory: str
    instance: str
    gpu_memory: str
    prices: Mapping[str, bool | str]
    """Column of a price -> whether it is of spot machines, or the column that says so."""


_FORMATS = (
    _Format("gpu_name", "gpu_count", "memory", "instance_name", "gpu_memory", {"price": "spot"}),  # gpuhunt
    _Format(  # SkyPilot's vms.csv
        *("AcceleratorName", "AcceleratorCount", "MemoryGiB", "InstanceType", "GpuInfo"),
        {"Price": False, "SpotPrice": True},
    ),
    _Format("gpu", "num_gpus", "host_memory_gib", "", "", {"usd_per_hour": "spot"}),
)


def read_price_file(file: Path) -> list[Machine]:
    """The machines of a CSV file: of gpuhunt or SkyPilot, recognized by the header, or with our columns.

    Rows without a GPU, or with a card that zerokit does not know, are left out; and those of a catalogue without
    a price.

    Raises:
        ZerokitError: it cannot be read, is too large or of another format, a cell is no number, or a row with our
            columns lacks one.
    """
    where = printable(file)
    if (reason := unreadable_reason(file)) is not None or not is_file(file):
        raise ZerokitError(reason or "is no file", where=where, hint="Check the path")
    if file.stat().st_size > _MOST_BYTES:
        raise ZerokitError("is larger than 64 MiB", where=where, hint="Keep the rows with GPUs that you mean")
    changed = datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()
    with opened_text(file, "") as text:
        reader = csv.DictReader(text, strict=True)
        try:
            columns = set(reader.fieldnames or ())
            format_ = next((one for one in _FORMATS if {one.card, one.num_gpus} <= columns), None)
            if format_ is None or not columns & format_.prices.keys():
                hint = f"Use a catalogue of gpuhunt or SkyPilot, or name {', '.join(_COLUMNS[:3])}"
                message = "is no price file: its first line names none of the known columns"
                raise ZerokitError(message, where=f"{where}:1", hint=hint)
            return [
                machine
                for row in reader
                for machine in _machines(row, format_, f"{where}:{reader.line_num}", file, changed)
            ]
        except csv.Error as error:
            where, message = f"{where}:{reader.line_num}", f"the table cannot be read: {error}"
            raise ZerokitError(message, where=where, hint="Fix that row") from None


def _machines(
    row: Mapping[str, str | None], format_: _Format, where: str, file: Path, changed: str
) -> Iterator[Machine]:
    def cell(name: str) -> str:
        return (row.get(name) or "").strip()

    def number(name: str, what: str, most: float = _MOST_USD) -> float:
        if (found := _number(cell(name) or "0", most)) is None:
            message = f"'{cell(name)}' in column '{name}' is no such number"
            raise ZerokitError(message, where=where, hint=f"Write {what} up to {most:,}")
        return found

    if format_.instance and not cell(format_.instance):
        return  # SkyPilot's rows of Google Cloud: a GPU without the machine, which is priced apart
    gpu = _card_of(cell(format_.card), cell(format_.gpu_memory), cell(format_.instance))
    count = number(format_.num_gpus, "a number of GPUs", _MOST_GPUS) if gpu is not None else 0
    is_own = not format_.instance
    if gpu is not None and is_own and not count:
        raise ZerokitError(f"'{format_.num_gpus}' is missing or 0", where=where, hint="Give a number of GPUs")
    if gpu is None or count < 1 or count != int(count):
        return  # no GPU, another one, or a share of one
    host = number(format_.host_memory, "GiB", 1_000_000)
    provider = cell("provider") or (file.parent.name if file.stem == "vms" else file.stem)
    if is_own and not any(cell(column) for column in format_.prices):
        raise ZerokitError("has no price", where=where, hint=f"Give '{next(iter(format_.prices))}'")
    for column, spot in format_.prices.items():
        if usd := number(column, "US dollars of the machine for an hour,"):
            is_spot = cell(spot).lower() == "true" if isinstance(spot, str) else spot
            machine = int(count), usd, is_spot, provider, host or None
            yield Machine(gpu, *machine, cell("date") or changed, cell("source") or file.name)


@lru_cache(4096)
def _card_of(name: str, memory: str, instance: str) -> Gpu | None:
    """The card that a catalogue means; None if zerokit does not know it.

    gpuhunt calls the SXM and the PCIe card "H100"; SkyPilot calls the A100-40GB "A100".

    Args:
        memory: cell with its memory: a number of GB, or SkyPilot's `GpuInfo`.
    """
    sizes = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", memory.partition("SizeInMiB")[2] or memory)
    size = float(sizes[0]) if sizes else None
    if size is not None and size > 1000:
        size /= 1024  # RunPod's rows have GB in the column of MiB
    in_name = re.search(r"[ _-](\d+)gb?\b", name, re.IGNORECASE)
    nominal = in_name[1] if in_name else "40" if name == "A100" and size is None else None
    nominal = nominal or (None if size is None else f"{size:.0f}")
    base = _SUFFIX.sub("", name)
    bus = "PCIe" if _PCIE.search(instance) or _PCIE.search(f"{name} {memory}") else "SXM"
    # Catalogues write RTX-6000-Ada, RTX6000Ada, RTXA6000 and A6000; RTX 6000 alone is a card of 2018.
    for spelling in (f"{base}-{nominal}GB-{bus}", f"{base}-{bus}", f"{base}-{nominal}GB", base):
        with suppress(ZerokitError):
            gpu = find_gpu(spelling)
            if nominal is None or abs(float(nominal) / gpu.nominal_gb - 1) <= _MEMORY_TOLERANCE:
                return gpu
    return None


# The cache -----------------------------------------------------------------------------------------------


def update() -> tuple[Path, list[Machine]]:
    """Fetch the catalogue of gpuhunt, and write it into zerokit's cache folder as a file of ours.

    Of each provider, card, number of GPUs and kind of price the cheapest machine is kept.

    Raises:
        ZerokitError: the catalogue cannot be fetched, or has no known card.
    """
    import logging

    import gpuhunt

    logger = logging.getLogger("gpuhunt")  # prints tracebacks of providers that it could not reach
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    where, hint = "zerokit prices update", "Check the network; zerokit plan accepts --prices FILE, too"
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_SECONDS)  # gpuhunt's urlopen has none
    try:
        catalog = gpuhunt.Catalog(auto_reload=False)
        catalog.load()
        items = sorted(catalog.query(), key=lambda item: item.price)
    except (gpuhunt.GPUHuntError, OSError, ValueError) as error:
        message = f"the prices of gpuhunt cannot be fetched: {error.__cause__ or error}"
        raise ZerokitError(message, where=where, hint=hint) from None
    finally:
        socket.setdefaulttimeout(timeout)
    cheapest: dict[tuple[str, str, int, bool], Machine] = {}
    of_today = _today(), f"gpuhunt {version('gpuhunt')}"
    for item in items:
        gpu = _card_of(item.gpu_name or "", str(item.gpu_memory or ""), item.instance_name)
        if gpu is not None and 0 < item.gpu_count <= _MOST_GPUS and 0 < item.price <= _MOST_USD:
            machine = item.gpu_count, item.price, item.spot, item.provider, item.memory or None
            key = (item.provider, gpu.name, item.gpu_count, item.spot)
            cheapest.setdefault(key, Machine(gpu, *machine, *of_today))
    if not cheapest:
        raise ZerokitError("the catalogue of gpuhunt has no card that zerokit knows", where=where, hint=hint)
    machines = [cheapest[key] for key in sorted(cheapest)]
    text = io.StringIO()
    rows = ([one.gpu.name, *(getattr(one, name) for name in _COLUMNS[1:])] for one in machines)
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    file = cache_folder() / CACHE_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, text.getvalue())
    return file, machines


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
