"""``zerokit gpus``: the cards that zerokit knows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from zerokit import choices
from zerokit.cli.command import described
from zerokit.cli.output import print_json
from zerokit.units import format_bytes, quantity

if TYPE_CHECKING:
    from zerokit.hardware.gpus import Gpu


@described("gpus")
def gpus(name: str | None = None, output_format: choices.OutputFormat = "text") -> None:
    """List the GPUs for --gpu: memory, speed, links, machines, prices, and which figures are measured."""
    from zerokit.hardware.costs.known import measured_on
    from zerokit.hardware.gpus import matching_gpus, sources

    found = matching_gpus(name or "")
    if output_format == "text":
        _print_lines(found)
        return
    data: list[dict[str, Any]] = []
    for gpu in found:
        data.append(asdict(gpu) | {"memory_bytes": gpu.memory_bytes, "memory_caveat": gpu.memory_caveat})
        data[-1]["measured"] = measured_on(gpu)
        del data[-1]["memory_mib"]
    print_json({"gpus": data, "sources": sources()})


def _print_lines(found: tuple[Gpu, ...]) -> None:
    from zerokit.reporting.terminal import show, show_rows

    titles = ("GPU", "memory", "GB/s", "bf16 TFLOPS", "link GB/s", "host GB/s", "node", "USD per hour", "measured")
    show_rows([_row(gpu) for gpu in found], titles)
    if any(gpu.memory_caveat for gpu in found):
        show(["~: an estimate, since what torch reports is not published; --format json says of what"])
    show(["measured: kernels and links whose times were measured; '-': times come from similar cards."])
    show(f"{gpu.name}: {gpu.note}" for gpu in found if gpu.note is not None)


def _row(gpu: Gpu) -> tuple[str, ...]:
    from zerokit.hardware.costs.known import measured_on

    memory = "~" * (gpu.memory_caveat is not None) + format_bytes(gpu.memory_bytes)
    node = "-" if gpu.node is None else quantity(gpu.node.gpus, "GPU")
    if gpu.node is not None and gpu.node.ram_gib is not None:
        node += f", {gpu.node.ram_gib} GiB"
    prices = () if gpu.price is None else (f"{gpu.price.low:.2f}", f"{gpu.price.high:.2f}")
    price = " to ".join(dict.fromkeys(prices)) or "-"
    links = (None if link is None else link.gb_s for link in (gpu.link, gpu.host_link))
    speeds = (gpu.bandwidth_gb_s, gpu.tflops.get("bf16"), *links)
    numbers = ("-" if speed is None else f"{speed:g}" for speed in speeds)
    measured = ", ".join(word for kind, word in _MEASURED if kind in measured_on(gpu)) or "-"
    return (gpu.name, memory, *numbers, node, price, measured)


_MEASURED = (("matmul", "matmul"), ("attention", "attention"), ("memory_bound", "memory"), ("collective", "links"))
