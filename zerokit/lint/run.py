"""Running the rules."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerokit.config.base import AUTO, ZERO
from zerokit.config.key_index import as_written, canonical
from zerokit.config.launch_file import FILE_KEY, SECTION, ds_config_of, find_ds_config, launch_place
from zerokit.config.load import load_valid_part
from zerokit.config.normal_form import RENAMED
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import Document, read_document, value_at
from zerokit.errors import DocumentError
from zerokit.findings import SEVERITIES, Edit, Finding, Move, Remove, ReplaceText, SetValue
from zerokit.lint.adjust import drop_contradicting_fixes, for_this_run
from zerokit.lint.disabling import apply_disables, read_disables
from zerokit.lint.folding import fold_placeholders, fold_sections
from zerokit.lint.launch import Launch
from zerokit.lint.misnamed_sections import rename_sections
from zerokit.lint.plain_json import check_text
from zerokit.lint.rule import RULES, Hit, Need, Rule
from zerokit.lint.subject import Subject
from zerokit.resolving.run import Run
from zerokit.units import quantity

FACTS: Mapping[Need, Callable[[Run], object]] = {
    "num_gpus": lambda run: run.cluster.num_gpus,
    "model": lambda run: run.model,
    "recipe": lambda run: run.recipe,
    "gpu": lambda run: run.cluster.gpu and run.cluster.gpu.tflops,  # where only its memory is known: none
    "gpu_memory": lambda run: run.cluster.gpu_memory_bytes,
    "host_memory": lambda run: run.cluster.host_bytes,
}
"""Option of ``zerokit check`` -> its value for a run."""

_QUOTED = re.compile(r'"([a-z]\w*)"')
"""A key in a hint."""

OnBug = Callable[[Rule, Exception], None]
"""Called when a rule itself fails, which is a bug of zerokit."""


@dataclass(frozen=True, repr=False)
class Report:
    """The findings of the rules in one config."""

    findings: tuple[Finding, ...]
    """In the order of the file's lines."""
    not_run: Mapping[str, tuple[str, ...]]
    """Rule -> what it needs and is not known."""
    suppressed: tuple[Finding, ...] = ()
    """Findings of rules that the file switches off."""

    @property
    def ok(self) -> bool:
        """Whether there is no finding of severity error."""
        return all(finding.severity != "error" for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        """How many findings there are of each severity."""
        counts = Counter(finding.severity for finding in self.findings)
        found = ", ".join(quantity(counts[one], one) for one in SEVERITIES if counts[one])
        return f"<Report: {found or 'nothing found'}>"


Select = Callable[[Report], Report]
"""Reduces a report to the requested findings."""


def everything(report: Report) -> Report:
    return report


def check_document(
    document: Document, run: Run | None = None, *, on_bug: OnBug | None = None, select: Select = everything
) -> Report:
    """Everything that is wrong with a ds_config read from a file.

    Args:
        on_bug: called for a rule that fails, so that the others go on; None lets its exception through.
        select: the findings to report, before findings about the same place are merged.
    """
    rules = all_rules()
    run = run or Run()
    meant, valid, misnamed, as_in_file = rename_sections(document, run)
    found = [for_this_run(finding, meant, run) for finding in valid.findings]
    findings, of_text = check_text(meant, found, run.target)
    findings = [_placed(finding, meant) for finding in findings] + of_text
    disables, of_disables = read_disables(document)
    not_run: dict[str, tuple[str, ...]] = {}
    if valid.config is not None:
        subject = Subject.of(valid, run)
        for rule in rules.values():
            missing = missing_needs(rule, subject)
            if missing:
                not_run[rule.id] = missing
            elif rule.check is not None:
                findings += _run(rule, rule.check, subject, valid.written, meant, on_bug)
    findings = [*misnamed, *map(as_in_file, fold_placeholders(findings, meant))]
    kept, suppressed = apply_disables(list(drop_contradicting_fixes(findings, document.data)), disables, not_run)
    kept = [_placed(finding, document) if finding.line is None else finding for finding in kept + of_disables]
    report = select(Report(tuple(kept), not_run, _sorted(suppressed, document)))
    return replace(report, findings=_sorted(fold_sections(report.findings), document))


def check_config(
    config: DeepSpeedConfig | Mapping[str, Any], run: Run | None = None, *, on_bug: OnBug | None = None
) -> Report:
    """As `check_document`, for a config that is not a file; findings have no lines."""
    data = config.dump() if isinstance(config, DeepSpeedConfig) else config
    return check_document(Document(data, "ds_config"), run, on_bug=on_bug)


def check_launch_document(
    document: Document, run: Run | None = None, *, twin: str | None = None, on_bug: OnBug | None = None
) -> Report:
    """Everything that is wrong with the YAML of ``accelerate launch``, as far as it concerns DeepSpeed.

    The rules are those registered by :func:`zerokit.lint.rule.launch_rule`, and those of releases, for the
    ds_config that accelerate makes of the file.

    Args:
        document: the file; a ds_config that it names is read, too.
        twin: another launch file of its folder with the same content.
        on_bug: see `check_document`.
    """
    findings: list[Finding] = []
    if isinstance(document.data, Mapping):
        launched = launched_run(document.data, run := run or Run())
        file = find_ds_config(document)
        ds_config = None if file is None else _content(file)
        launch = Launch(document.data, launched.target, file is not None, ds_config, twin, run.cluster.num_gpus)
        for rule in all_rules().values():
            if rule.check_launch is not None:
                findings += _run(rule, rule.check_launch, launch, {}, document, on_bug)
        if launch.section and not launch.names_file:
            findings += _of_releases(document, launched, on_bug)
    return Report(_sorted(findings, document), {})


def _content(file: Path) -> Mapping[str, Any] | None:
    """What a ds_config holds; None if it cannot be read, which is reported when it is checked itself."""
    with suppress(DocumentError):
        data = read_document(file, lenient=True).data
        return data if isinstance(data, Mapping) else None
    return None


def launched_run(data: Mapping[str, Any], run: Run) -> Run:
    """`run` with what a launch file says of it: it has the processes, and DeepSpeed by itself reads no such
    file."""
    launch = Launch(data)
    processes, machines = (launch.option(key) for key in ("num_processes", "num_machines"))
    cluster = run.cluster
    if cluster.num_gpus is None and isinstance(processes, int) and processes > 0:
        several = isinstance(machines, int) and 1 < machines <= processes
        each = processes // machines if several else max(processes, cluster.gpus_per_node)
        cluster = replace(cluster, num_gpus=processes, gpus_per_node=each)
    target = run.target if run.target in ("accelerate", "trainer") else None
    return replace(run, target=target, cluster=cluster, recipe=None)


def _of_releases(document: Document, run: Run, on_bug: OnBug | None) -> Iterator[Finding]:
    """What the rules of releases find in the ds_config that accelerate makes of a launch file."""
    from zerokit.lint.defects import KNOWN_DEFECTS

    made = ds_config_of(document)
    valid = load_valid_part(made)
    if valid.config is None:
        return
    subject = Subject.of(valid, run)
    of_defects = {defect.rule for defect in KNOWN_DEFECTS.values()}
    for rule in all_rules().values():
        if rule.check is None or not (rule.topic == "versions" or rule.id in of_defects):
            continue
        if missing_needs(rule, subject):
            continue
        for finding in _run(rule, rule.check, subject, valid.written, made, on_bug):
            yield _placed(in_launch_file(finding, document), document)


def in_launch_file(finding: Finding, launch: Document) -> Finding:
    """A finding in the ds_config that accelerate makes of a launch file, as one in that file."""
    hint = finding.hint
    if any(key not in launch.data.get(SECTION, ()) for key in _QUOTED.findall(hint or "")):
        hint = f"{hint}, in a ds_config named as '{FILE_KEY}'"
    return replace(finding, path=launch_place(finding.path), hint=hint, fix=())


def missing_needs(rule: Rule, subject: Subject) -> tuple[Need, ...]:
    return tuple(need for need in rule.needs if FACTS[need](subject.run) is None)


def all_rules() -> dict[str, Rule]:
    """Every rule by its id, in the order in which they are documented and run."""
    import zerokit.lint.rules  # noqa: F401 - registers them; they import this package's frame in turn

    return RULES


def _run(
    rule: Rule,
    check: Callable[[Any], Iterator[Hit]],
    subject: Any,
    written: Mapping[str, Any],
    document: Document,
    on_bug: OnBug | None,
) -> list[Finding]:
    try:
        return [_finding(rule, hit, written, document) for hit in check(subject)]
    except Exception as error:
        if on_bug is None:
            raise
        on_bug(rule, error)
        return []


def _finding(rule: Rule, hit: Hit, written: Mapping[str, Any], document: Document) -> Finding:
    path = as_written(hit.path, written)
    fix = tuple(_edit_as_written(edit, written) for edit in hit.fix)
    if any(_overrides(edit, written) for edit in fix):
        fix = ()  # a person's own value is theirs to change
    severity = hit.severity or rule.severity
    return _placed(Finding(path, hit.message, hit.hint, severity=severity, rule=rule.id, fix=fix), document)


def _overrides(edit: Edit, written: Mapping[str, Any]) -> bool:
    """Whether an edit puts another plain value in place of one that the file gives, under any name."""
    if not isinstance(edit, SetValue):
        return False
    old = next((old for old, new in RENAMED.items() if canonical(edit.path) == (ZERO, new)), None)
    if old is not None and value_at(written, (ZERO, old), edit.value) != edit.value:
        return True
    if isinstance(edit.value, Mapping):
        return False
    return value_at(written, edit.path, AUTO) not in (AUTO, edit.value)


def _edit_as_written(edit: Edit, written: Mapping[str, Any]) -> Edit:
    match edit:
        case SetValue(path) | Remove(path):
            return replace(edit, path=as_written(path, written))
        case Move(path, to):
            # The last key stays as given: a move may well be from a second name to the first.
            to = (*as_written(to[:-1], written), to[-1])
            return replace(edit, path=as_written(path, written), to=to)
        case ReplaceText():
            return edit


def _placed(finding: Finding, document: Document) -> Finding:
    place = document.position(finding.path)
    return finding if place is None else replace(finding, line=place[0], column=place[1])


def findings_in_order(findings: Iterable[Finding], document: Document) -> tuple[Finding, ...]:
    """Findings with their places, in the order of the file's lines."""
    return _sorted((_placed(finding, document) for finding in findings), document)


def _sorted(findings: Iterable[Finding], document: Document) -> tuple[Finding, ...]:
    """By line; within a line by column, and then in the order of the rules. YAML cannot be fixed."""
    if document.is_yaml:
        findings = [replace(finding, fix=()) for finding in findings]
    return tuple(sorted(findings, key=lambda finding: (finding.line or 0, finding.column or 0)))
