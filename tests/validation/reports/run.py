"""What zerokit prints for public bug reports, against what was the matter with them.

``python -m tests.validation.reports.run [--write] [--print] [NAME...]`` runs the commands of each case
in tests/validation/reports. Each case has a folder with the inputs that the thread quotes and a
``case.json``: the true cause, the fix that worked, what the output must and must not say, and the
verdicts before and after.
With ``--write`` the table goes into results/reports.json and records/reports.md.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.reports.cases import CASES, Case, run_command, to_row

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "reports.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "reports.md"
BEGIN, END = "<!-- reports -->\n", "<!-- /reports -->\n"
VERDICTS = {
    "a": "right cause and a fix that works",
    "b": "partly helpful",
    "c": "says nothing useful",
    "d": "says something wrong",
}


def _counts(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| | cases | " + " | ".join(f"{letter}: {text}" for letter, text in VERDICTS.items()) + " |"]
    lines.append("|---|---:|" + "---:|" * len(VERDICTS))
    for given, name in ((True, "came with the issue"), (False, "searched for later")):
        chosen = [row for row in rows if row["given"] == given]
        for when in ("before", "after"):
            found = Counter(row[when] for row in chosen if row[when])
            cells = " | ".join(str(found[letter]) for letter in VERDICTS)
            if found:
                lines.append(f"| {name}, {when} | {found.total()} | {cells} |")
    return lines


def table(rows: Sequence[dict[str, Any]], cases: Sequence[Case]) -> str:
    """The page's tables."""
    by_name = {case.name: case for case in cases}
    lines = [
        *_counts(rows),
        "",
        "| thread | kind | true cause | before | after | checks |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        case = by_name[row["case"]]
        place, number = case.thread.rsplit("#", 1)
        link = f"[{case.thread}](https://github.com/{place}/issues/{number}) ({case.date})"
        cause = case.cause.replace("|", "\\|")
        checks = "pass" if row["passes"] else "fail"
        lines.append(f"| {link} | {case.kind} | {cause} | {row['before']} | {row['after'] or '-'} | {checks} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only cases with this word in their name")
    parser.add_argument("--write", action="store_true", help="rewrite the record; rows not run again stay")
    parser.add_argument("--print", action="store_true", help="print what the commands print")
    options = parser.parse_args()
    written = json.loads(WRITTEN.read_text(encoding="utf-8")) if WRITTEN.exists() else []
    rows = {row["case"]: row for row in written}
    for case in CASES:
        if options.names and not any(name in case.name for name in options.names):
            continue
        if options.print:
            for command in case.commands:
                outcome = run_command(case, command)
                print(f"== {case.name}: zerokit {command.command}\n{outcome.printed}exit {outcome.exit}")
        row = rows[case.name] = to_row(case)
        verdict = f"{row['before']} -> {row['after'] or '?'}"
        print(f"{'pass' if row['passes'] else 'FAIL'}  {verdict}  {case.name} ({case.kind})", flush=True)
        for fault in row["faults"]:
            print(f"        {fault}", flush=True)
    kept = [rows[case.name] for case in CASES if case.name in rows]
    print(f"{sum(row['passes'] for row in kept)} of {len(kept)} cases pass")
    if options.write:
        WRITTEN.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n" + table(kept, CASES) + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
