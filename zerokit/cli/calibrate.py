"""``zerokit calibrate``: measure the speed of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from zerokit.cli.command import described


@described("calibrate")
def calibrate(
    output: Path,
    device: Literal["cuda", "cpu"] | None = None,
    ranks: int | None = None,
    threads: int | None = None,
    force: bool = False,
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
        times = (f"{1e6 * seconds:,.2f} µs" for seconds in (row.measured, row.catalogue))
        table.append((row.what, *times, f"{row.measured / row.catalogue:.2f}"))
    show_rows(table, ("", "measured", "catalogue", "ratio"))
    show([f"Wrote {output}. Use it: zerokit rehearse --time --hardware {output} ..."])
