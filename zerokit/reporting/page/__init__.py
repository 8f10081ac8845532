"""The page of a plan, an estimate, a rehearsal or a finished run: one HTML file that needs nothing else.

It makes no request to any host, and can be read without JavaScript. A picture is one of its charts, as SVG.
"""

from __future__ import annotations

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any, Literal

from zerokit import __version__, units
from zerokit.documents import is_file
from zerokit.errors import ZerokitError, printable
from zerokit.files import write_file
from zerokit.reporting.categories import CATEGORIES, COLOURS, category_words
from zerokit.reporting.losses import read_losses
from zerokit.reporting.page import charts, words
from zerokit.reporting.page.documents import parse, read_document
from zerokit.reporting.phases import phase_words
from zerokit.reporting.work import TIME_PARTS, WORK_COLOURS, WORK_WORDS

_FOLDER = Path(__file__).parent
_MOST_ROWS = 100
_LONGEST_TITLE = 110
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def page_of_file(file: Path) -> str:
    """The page of plan.json, run.json, or the JSON of an estimate or a rehearsal.

    The page of a run shows the losses of ``metrics.jsonl`` beside its file.

    Raises:
        DocumentError: the file is none of them, or the metrics cannot be read.
    """
    data = read_document(file)
    metrics = file.with_name("metrics.jsonl")
    if isinstance(data, dict) and "run_id" in data and is_file(metrics):
        data["losses"] = read_losses(metrics)
    return page_text(data, printable(file))


def write_page(output: str | Path, data: Any, where: str = "<json>") -> None:
    """Write the page of what ``--format json`` prints.

    Raises:
        DocumentError: as :func:`page_of_file`.
        ZerokitError: the page cannot be written.
    """
    write_file(output, page_text(data, where).encode(), follow_links=True)


def check_picture(file: str | Path, option: str) -> None:
    """Check the name of a picture, before long work begins. ZerokitError if it does not end in .svg."""
    if Path(file).suffix.lower() != ".svg":
        raise ZerokitError(
            "a picture is written as SVG, not as PNG or another format",
            where=f"{option} {printable(file)}",
            hint="Name a file that ends in .svg, or write a page with --html",
        )


def write_picture(
    output: str | Path, chart: Literal["memory", "over_a_step", "streams"], data: Any, title: str
) -> None:
    """Write one chart of the page as an SVG file, on a light background.

    Args:
        chart: ``memory`` of estimates, ``over_a_step`` or ``streams`` of a rehearsal.
        data: what ``--format json`` prints.

    Raises:
        DocumentError: as :func:`page_of_file`.
        ZerokitError: the picture cannot be written, or there is nothing to draw.
    """
    colours = dict(re.findall(r"(--[a-z]+): (#\w+);", _read("page.css").partition("@media")[0]))
    style = re.sub(r"var\((--[a-z]+)\)", lambda found: colours[found[1]], _chart_style())
    style += f".paper{{fill:{colours['--paper']}}}text{{font-family:sans-serif}}"
    style += f"text.title{{font-size:16px;fill:{colours['--ink']}}}"
    document = _parsed(data, "<json>")[1]
    picture = _environment().get_template("picture.jinja").render(
        **document, chart=chart, picture=title[:_LONGEST_TITLE], style=style
    )  # fmt: skip
    if not picture.strip():
        raise ZerokitError("there is nothing to draw", where=output)
    write_file(output, _NOT_IN_XML.sub("\ufffd", picture).encode(), follow_links=True)


def page_text(data: Any, where: str = "<json>") -> str:
    """The HTML. DocumentError as :func:`page_of_file`."""
    kind, shown = _parsed(data, where)
    style, script = _read("page.css") + _chart_style(), _read("page.js")
    page: str = _environment().get_template(f"{'estimate' if kind == 'sweep' else kind}.jinja").render(
        **shown, toc=[], version=__version__,
        style=style, script=script, style_hash=_hash(style), script_hash=_hash(script),
    )  # fmt: skip
    return page


def _parsed(data: Any, where: str) -> tuple[str, dict[str, Any]]:
    """The kind of a document, and what templates know it by."""
    kind, document = parse(data, where)
    return kind, {"document": document, "estimates": document.sweep if kind == "sweep" else [document]}


@cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "bytes": units.format_bytes, "count": units.format_count, "seconds": units.format_seconds,
        "category": category_words, "phase": phase_words, "share": charts.share,
        "usd": words.usd, "ms": words.ms, "bar_of_estimate": words.bar_of_estimate,
        "few": lambda rows: rows[:_MOST_ROWS], "file_name": lambda path: PurePath(path).name,
    }  # fmt: skip
    environment.globals |= {
        "span": units.format_span, "quantity": units.quantity, "GIB": units.GIB, "categories": CATEGORIES,
        "work": WORK_WORDS, "time_parts": TIME_PARTS, "charts": charts, "words": words,
    }  # fmt: skip
    return environment


def _chart_style() -> str:
    colours = {**COLOURS, **WORK_COLOURS}.items()
    return _read("charts.css") + "".join(f".fill-{name}{{fill:{colour}}}" for name, colour in colours)


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """By which the page's policy allows its own style and script, and no other."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
