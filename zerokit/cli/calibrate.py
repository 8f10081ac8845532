"""``zerokit calibrate``: measure the speed of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from zerokit.cli.output import Force


def calibrate(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file, for rehearse --hardware.", show_default=False
        ),
    ],
    device: Annotated[
        Literal["cuda", "cpu"] | None,
        typer.Option(
            help="Device to measure; cpu: the threads of each rank.", show_default="cuda if there is one"
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Processes to measure collectives between.",
            show_default="one for each card, 2 with cpu",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, max=1024, help="cpu: threads of each rank.", show_default="all, shared by the ranks"
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Measure this machine's speed, in a minute or two.

    It measures matmuls, attention, memory, copies, collectives, launches, Python, autograd and Adam.
    Nothing else should run meanwhile. It also prints the ratio to zerokit's catalogue.
    """
    from zerokit.extras import require
    from zerokit.files import check_writable

    require("rehearse", where="zerokit calibrate")
    check_writable(output, force=force, follow_links=True)
    from zerokit.calibration.calibrate import calibrate as calibrate_machine
    from zerokit.reporting.terminal import show, show_rows

    rows = calibrate_machine(output, device, ranks, threads)
    table = []
    for row in rows:
        times = map(_microseconds, (row.measured, row.catalogue))
        table.append((row.what, *times, f"{row.measured / row.catalogue:.2f}"))
    show_rows(table, ("", "measured", "catalogue", "ratio"))
    show([f"Wrote {output}. Use it: zerokit rehearse --time --hardware {output} ..."])


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.2f} µs"
