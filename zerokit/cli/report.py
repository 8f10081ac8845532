"""``zerokit report``: the page of a plan, an estimate, a rehearsal or a finished run."""

from __future__ import annotations

from pathlib import Path

from zerokit.cli.command import described


@described("report")
def report(file: Path, output: Path = Path("report.html"), force: bool = False) -> None:
    """Write a page of a plan, an estimate, a rehearsal or a finished run: one HTML file that needs no other.

    It can be read without JavaScript and without a network.
    """
    from zerokit.console import note
    from zerokit.files import check_writable
    from zerokit.reporting.page import write_page_of_file

    check_writable(output, force=force, follow_links=True)
    write_page_of_file(file, output)
    note(f"wrote {output}")
