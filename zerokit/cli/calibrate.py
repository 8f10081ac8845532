"""``zerokit calibrate``: what this machine takes for the work of a training step."""

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
            help="What is the card; cpu: each rank's threads are.", show_default="cuda if there is one"
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
    """Measure what this machine takes for the work of a training step, in a minute or two.

    Matrix products, attention, memory, copies, collectives, launches, Python, autograd and Adam, with torch.
    Nothing else should run meanwhile. It prints how far the catalogue of zerokit is off.
    """
    from zerokit.extras import require
    from zerokit.files import check_writable

    require("rehearse", where="zerokit calibrate")
    check_writable(output, force=force, follow_links=True)
    from zerokit.calibration.calibrate import calibrate as calibrate_machine
    from zerokit.reporting.terminal import show, show_rows

    rows = calibrate_machine(output, device, ranks, threads)
    show_rows(
        [
            (
                row.what,
                _microseconds(row.measured),
                _microseconds(row.catalogue),
                f"{row.measured / row.catalogue:.2f}",
            )
            for row in rows
        ],
        ("", "measured", "catalogue", "ratio"),
    )
    show([f"Wrote {output}. Take it: zerokit rehearse --time --hardware {output} ..."])


def _microseconds(seconds: float) -> str:
    return f"{1e6 * seconds:,.2f} µs"
