"""Draws the picture of README: ``python -m tests.reporting.picture PLAN`` writes ``docs/images/report.png``.

PLAN is the JSON that ``zerokit plan`` prints. The picture is the top of its page, in Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.tiny import REPOSITORY
from zerokit.reporting.page import page_of_file

PICTURE = REPOSITORY / "docs" / "images" / "report.png"


def main() -> None:
    """Write the picture."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "report.html"
        page.write_text(page_of_file(Path(sys.argv[1])), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 1500})
        tab.goto(page.as_uri())
        tab.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
