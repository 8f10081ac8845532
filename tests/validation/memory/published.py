"""Estimates beside published memory figures: ``python -m tests.validation.memory.published [--write]``.

Prints predicted, measured and error of each row of tests/data/published_memory.json that says enough, the
medians by source, and the others with what they lack. With ``--write`` it also writes
results/estimate_published.json and the table of records/estimate-accuracy.md. No constant of the estimate
was chosen by any of these rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from dataclasses import asdict

from tests.tiny import REPOSITORY
from tests.validation.memory.published_rows import Judged, Unjudged, judge_all

DATA = REPOSITORY / "tests" / "data" / "published_memory.json"
WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "estimate_published.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "estimate-accuracy.md"


def by_source(found: list[Judged | Unjudged]) -> dict[str, list[Judged]]:
    """The judged ones, by project."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in found:
        if isinstance(one, Judged):
            groups[_project(one.source)].append(one)
    return groups


def _project(source: str) -> str:
    if source.startswith("ZeRO"):
        return source
    return source.split()[0].strip('"') + (" bf16_master_weight" if "bf16_master" in source else "")


def median_error(judged: list[Judged]) -> float:
    """The median of the errors' sizes."""
    return statistics.median(abs(one.error) for one in judged)


def table(found: list[Judged | Unjudged]) -> str:
    """Markdown: medians by source, every row but the paper's, and why the others are not judged."""
    lines = ["| source | kind | figures | median error | largest |", "|---|---|---|---|---|"]
    for source, judged in by_source(found).items():
        largest = max((one.error for one in judged), key=abs)
        lines.append(f"| {source} | {judged[0].kind} | {len(judged)} | {median_error(judged):.1%} | {largest:+.1%} |")
    lines += ["", "| figure | measured | predicted | error | interval |", "|---|---|---|---|---|"]
    for one in found:
        if isinstance(one, Judged) and one.kind != "states":
            interval = ""
            if one.low is not None:
                interval = f"{one.low:.1f} to {one.high:.1f}, {'holds it' if one.inside else 'misses it'}"
            lines.append(
                f"| {_project(one.source)}: {one.what} | {one.measured:g} {one.unit} | {one.predicted:.2f} "
                f"| {one.error:+.1%} | {interval} |"
            )
    reasons = Counter(one.why for one in found if isinstance(one, Unjudged))
    lines += ["", "| rows | not judged, because |", "|---|---|"]
    lines += [f"| {number} | {reason} |" for reason, number in reasons.most_common()]
    return "\n".join(lines) + "\n"


BEGIN, END = "<!-- published: begin -->\n", "<!-- published: end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="rewrite the files in docs/")
    options = parser.parse_args()
    found = judge_all(json.loads(DATA.read_text(encoding="utf-8")))
    for one in found:
        if isinstance(one, Judged):
            figures = f"{one.measured:10g} {one.predicted:10.2f} {one.error:+7.1%}"
            print(f"{one.row:4} {figures} {one.kind:9} {one.what}")
    for source, judged in by_source(found).items():
        print(f"{source}: median error {median_error(judged):.1%} of {len(judged)}")
    for one in found:
        if isinstance(one, Unjudged):
            print(f"{one.row:4} not judged: {one.why} ({one.source})")
    if options.write:
        data = [asdict(one) for one in found]
        WRITTEN.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(found) + "\n" + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
