"""Checks ds_config files that others have published, and writes what was found in them.

``python -m tests.validation.lint.wild FOLDER [--write]`` checks every file of FOLDER, whose index.json is a
list of objects with the keys ``id``, ``file``, ``repo``, ``path``, ``commit`` and ``kind`` (``ds_config``
for files that are used as they are, something else for templates). Each is read as `zerokit check` reads it
and checked without a target and for each target; it must load again from its dump, and fixing it twice must
be fixing it once. What fails in that is listed, and the exit code is 1.

``--write`` writes the counts to results/wild_configs.json, and the tables of records/wild-configs.md and
records/wild-errors.md between the marks that they have for them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY
from tests.validation.lint.wild_reasons import reason_of, why_it_hurts
from zerokit.config.load import load_ds_config, load_valid_part
from zerokit.documents import Document, dotted
from zerokit.errors import DocumentError
from zerokit.findings import SEVERITIES, Finding
from zerokit.lint import Report, check_document
from zerokit.lint.files import read_file
from zerokit.lint.fix import fix_document
from zerokit.lint.run import all_rules
from zerokit.resolving.run import Run

WRITTEN = REPOSITORY / "tests" / "validation" / "results" / "wild_configs.json"
PAGE = REPOSITORY / "tests" / "validation" / "records" / "wild-configs.md"
ERRORS_PAGE = REPOSITORY / "tests" / "validation" / "records" / "wild-errors.md"
TARGETS = (None, "trainer", "accelerate", "deepspeed")
OWN = "deepspeedai/"
"""Repositories of DeepSpeed's own authors, counted apart: many of their examples are as old as DeepSpeed."""
FREQUENT = 10

Row = dict[str, Any]


@dataclass
class Survey:
    """What the rules say of all files."""

    entries: list[Row]
    """The index, in its order."""
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    """By the file's id, without a target."""
    for_target: dict[str, Counter[str]] = field(default_factory=dict)
    """Target -> rule -> findings of severity error in files that are no templates."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Id -> why."""
    failures: list[str] = field(default_factory=list)
    """What must not be: crashes, dumps that load as something else, fixes that do not come to rest."""

    def pure(self) -> list[Row]:
        """The files that were read and are no templates."""
        return [row for row in self.entries if row["kind"] == "ds_config" and row["id"] in self.findings]

    def errors(self) -> list[tuple[Row, Finding]]:
        """All findings of severity error without a target, by file."""
        found = [(row, finding) for row in self.entries for finding in self.findings.get(row["id"], ())]
        return [(row, finding) for row, finding in found if finding.severity == "error"]


def survey(folder: Path) -> Survey:
    """Check every file of `folder` that its index.json names."""
    result = Survey(json.loads((folder / "index.json").read_text(encoding="utf-8")))
    result.for_target = {target: Counter() for target in TARGETS if target}
    for row in result.entries:
        try:
            document = read_file(folder / row["file"])
        except DocumentError as error:
            result.unreadable[row["id"]] = error.message
            continue
        try:
            _look_at(row, document, result)
        except Exception as error:  # what is looked for: no file may make zerokit fail
            result.failures.append(f"{row['id']}: {type(error).__name__}: {error}")
    return result


def _look_at(row: Row, document: Document, result: Survey) -> None:
    for target in TARGETS:
        check = _checker(target)
        report = check(document)
        if target is None:
            result.findings[row["id"]] = report.findings
        elif row["kind"] == "ds_config":
            errors = (finding.rule for finding in report.findings if finding.severity == "error")
            result.for_target[target].update(errors)
        if (document.text or "").strip() and not _comes_to_rest(document, check):
            result.failures.append(f"{row['id']}: fixing twice is not fixing once (target {target})")
    if not _loads_again(document):
        result.failures.append(f"{row['id']}: its dump loads as another config")


def _checker(target: str | None) -> Callable[[Document], Report]:
    """Checks each text of a file once, though fixing it twice asks for most of them again."""
    reports: dict[str | None, Report] = {}

    def check(document: Document) -> Report:
        if document.text is None or document.text not in reports:
            reports[document.text] = check_document(document, Run.of(target=target))
        return reports[document.text]

    return check


def _comes_to_rest(document: Document, check: Callable[[Document], Report]) -> bool:
    once = fix_document(document, check)
    again = fix_document(once.document, check)
    return again.done == () and again.document.text == once.document.text


def _loads_again(document: Document) -> bool:
    """Whether the valid part, and the whole if it is valid, is the same after a dump."""
    config, findings, written, *_ = load_valid_part(document)
    if config is None:
        return False
    forms = [config.dump(), config.dump(all=True), written]
    if all(finding.severity != "error" for finding in findings):
        whole = load_ds_config(document)
        if whole != config:
            return False
        forms.append(whole.dump())
    return all(load_ds_config(json.loads(json.dumps(form))) == config for form in forms)


def figures(result: Survey) -> Row:
    """What results/wild_configs.json holds."""
    entries, pure = result.entries, result.pure()
    copies = {copy["repo"] for row in entries for copy in row.get("copies", ())}
    repositories = {row["repo"] for row in entries}
    return {
        "what": "Findings of zerokit check in ds_config files of public repositories, without a target",
        "made_by": "python -m tests.validation.lint.wild FOLDER --write",
        "files": len(entries),
        "repositories": len(repositories),
        "repositories_with_copies": len(repositories | copies),
        "templates": sum(row["kind"] != "ds_config" for row in entries),
        "unreadable": result.unreadable,
        "groups": {name: _group(rows, result) for name, rows in _groups(pure).items()},
        "findings": list(_by_rule(pure, result)),
        "errors_for_target": {target: dict(sorted(counts.items())) for target, counts in result.for_target.items()},
        "errors": sorted([row["id"], finding.rule, dotted(finding.path)] for row, finding in result.errors()),
    }


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    return {
        "elsewhere": [row for row in rows if not row["repo"].startswith(OWN)],
        "deepspeedai": [row for row in rows if row["repo"].startswith(OWN)],
    }


def _group(rows: list[Row], result: Survey) -> Row:
    worst: Counter[str] = Counter()
    for row in rows:
        severities = {finding.severity for finding in result.findings[row["id"]]}
        worst[next((severity for severity in SEVERITIES if severity in severities), "none")] += 1
    return {"files": len(rows), "worst_finding": {key: worst[key] for key in (*SEVERITIES, "none")}}


def _by_rule(rows: list[Row], result: Survey) -> Iterator[Row]:
    """Rule and severity -> in how many files, and how often, by group; the most frequent first."""
    groups = _groups(rows)
    counts = {name: _counted(members, result) for name, members in groups.items()}
    keys = {key for of_group in counts.values() for key in of_group}
    order = {severity: index for index, severity in enumerate(SEVERITIES)}
    rules = list(all_rules())

    def rank(key: tuple[str, str]) -> tuple[int, int, int]:
        files = sum(counts[name][key][0] for name in groups if key in counts[name])
        return order[key[1]], -files, rules.index(key[0])

    for rule, severity in sorted(keys, key=rank):
        found = {name: counts[name].get((rule, severity), (0, 0)) for name in groups}
        yield {
            "rule": rule,
            "severity": severity,
            **{name: {"files": files, "findings": times} for name, (files, times) in found.items()},
        }


def _counted(rows: list[Row], result: Survey) -> dict[tuple[str, str], tuple[int, int]]:
    files: Counter[tuple[str, str]] = Counter()
    times: Counter[tuple[str, str]] = Counter()
    for row in rows:
        keys = [(finding.rule, finding.severity) for finding in result.findings[row["id"]]]
        times.update(keys)
        files.update(set(keys))
    return {key: (files[key], times[key]) for key in times}


# The page


def blocks(result: Survey) -> dict[str, str]:
    """The parts of the page that are written by this program, by the name of their mark."""
    numbers = figures(result)
    return {"set": _set(numbers), "frequent": _frequent(result), "findings": _findings(numbers)}


def error_blocks(result: Survey) -> dict[str, str]:
    """The same of the page of errors."""
    return {"errors": error_tables(result, pure=True), "template-errors": error_tables(result, pure=False)}


def _set(numbers: Row) -> str:
    columns = ("repositories", "files", "an error", "a warning at worst", "info at worst", "nothing found")
    copies, templates = numbers["repositories_with_copies"], numbers["templates"]
    said = (
        f"{numbers['files']} files from {numbers['repositories']} repositories (with those that hold a copy "
        f"of one of them, {copies}). {templates} are templates with words to be filled in, "
        f"{len(numbers['unreadable'])} cannot be read at all; the others are counted here:"
    )
    lines = [*textwrap.wrap(said, 118), "", f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---:|"]
    for name, title in (("elsewhere", "all others"), ("deepspeedai", "`deepspeedai/*`")):
        group = numbers["groups"][name]
        cells = [str(group["worst_finding"][key]) for key in (*SEVERITIES, "none")]
        lines.append(f"| {title} | {group['files']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _frequent(result: Survey) -> str:
    files: Counter[str] = Counter()
    for row in result.pure():
        files.update({f.rule for f in result.findings[row["id"]] if f.severity != "info"})
    rules = all_rules()
    lines = ["| files | mistake | why it hurts |", "|---:|---|---|"]
    for rule, count in files.most_common(FREQUENT):
        lines.append(f"| {count} | {_link(rule)}: {_lower(rules[rule].title)} | {why_it_hurts(rule)} |")
    return "\n".join(lines)


def _findings(numbers: Row) -> str:
    lines = [
        "| rule | severity | files elsewhere | findings | files in `deepspeedai/*` | findings |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in numbers["findings"]:
        cells = [row[name][key] for name in ("elsewhere", "deepspeedai") for key in ("files", "findings")]
        lines.append(f"| {_link(row['rule'])} | {row['severity']} | {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def error_tables(result: Survey, *, pure: bool) -> str:
    """Every error by repository; files of one repository with the same fault stand in one line."""
    grouped: dict[tuple[str, ...], list[Row]] = {}
    for row, finding in result.errors():
        if (row["kind"] == "ds_config") != pure:
            continue
        reason = reason_of(finding, template=not pure)
        key = "" if not pure else f"`{dotted(finding.path)}`"
        rows = grouped.setdefault((row["repo"], key, finding.rule if pure else "", reason), [])
        if row not in rows:
            rows.append(row)
    # Keys of one section that are refused for one reason stand in one line, too.
    joined: dict[tuple[str, ...], tuple[list[str], list[Row]]] = {}
    for (repo, key, rule, reason), rows in grouped.items():
        keys, _ = joined.setdefault((repo, rule, reason, *(row["id"] for row in rows)), ([], rows))
        keys.append(key)
    title = "| files | keys | rule | why it is true |" if pure else "| files | why it is true |"
    lines: list[str] = []
    repository = None
    for (repo, rule, reason, *_), (keys, rows) in sorted(joined.items(), key=lambda item: item[0][0].lower()):
        if repo != repository:
            lines += ["", f"**{repo}**", "", title, "|---" * (title.count("|") - 1) + "|"]
            repository = repo
        files = "<br>".join(_permalink(row) for row in rows)
        lines.append(
            f"| {files} | {', '.join(keys)} | {_link(rule, '../')} | {reason} |" if pure else f"| {files} | {reason} |"
        )
    return "\n".join(lines).strip()


def _permalink(row: Row) -> str:
    """The file as it was, in Markdown."""
    address = f"https://github.com/{row['repo']}/blob/{row['commit']}/{row['path']}".replace(" ", "%20")
    return f"[{row['path']}]({address})"


def _link(rule: str, up: str = "") -> str:
    return f"[{rule}]({up}rules.md#{rule})"


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]


def with_blocks(page: str, parts: dict[str, str]) -> str:
    """The page with the parts between their marks, `<!-- NAME -->` and `<!-- /NAME -->`.

    Raises:
        ValueError: the page lacks a mark.
    """
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no place for {name}")
        page = pattern.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)  # type: ignore[misc]
    return page


def main() -> int:
    """Survey the folder, and write what came out if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="rewrite the figures and the pages in docs/")
    arguments = parser.parse_args()
    result = survey(arguments.folder)
    numbers = figures(result)
    if arguments.write:
        WRITTEN.write_text(to_json(numbers), encoding="utf-8")
        for page, parts in ((PAGE, blocks(result)), (ERRORS_PAGE, error_blocks(result))):
            page.write_text(with_blocks(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    else:
        print(_set(numbers), _findings(numbers), sep="\n\n")
    for failure in result.failures:
        print(failure, file=sys.stderr)
    return 1 if result.failures else 0


def to_json(numbers: Row) -> str:
    """Indented, with the long lists one entry a line."""
    text = json.dumps({**numbers, "findings": 0, "errors": 1}, indent=1)
    for mark, name in ((0, "findings"), (1, "errors")):
        rows = ",\n".join(f"  {json.dumps(row)}" for row in numbers[name])
        text = text.replace(f'"{name}": {mark}', f'"{name}": [\n{rows}\n ]')
    return text + "\n"


if __name__ == "__main__":
    sys.exit(main())
