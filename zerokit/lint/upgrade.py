"""What changes for a ds_config when DeepSpeed is upgraded."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from zerokit.config.key_index import as_written
from zerokit.config.launch_file import deepspeed_section, ds_config_of, is_launch_file, named_ds_config, runs_deepspeed
from zerokit.documents import Document, KeyPath, dotted, split_dotted, value_at
from zerokit.errors import ConfigError, DocumentError
from zerokit.findings import Finding
from zerokit.lint.defects import CHANGES, KNOWN_DEFECTS
from zerokit.lint.misnamed_sections import rename_sections
from zerokit.lint.rules.versions import foreign_keys, keys_with_telling_defaults
from zerokit.lint.run import Report, Select, everything, findings_in_order, in_launch_file, launched_run
from zerokit.lint.subject import Subject
from zerokit.releases.versions import NEWEST, NO_DEFAULT, Version, default_at, optimizers_at, parse_version, refused_at
from zerokit.resolving.run import Run
from zerokit.tables import table_of

OPTION = "--upgrade"
LABELS: dict[str, str] = table_of(__file__)
"""Labels of the findings, each with what it means."""


@dataclass(frozen=True)
class Upgrade:
    """Two releases of DeepSpeed, the older first."""

    old: Version
    new: Version


def parse_upgrade(text: str) -> Upgrade:
    """Two releases as people write them: ``0.16.4..0.19.8``; without the second, the newest.

    Raises:
        ConfigError: a release is missing or unknown, or the second is not the later one.
    """
    before, _, after = (part.strip() for part in text.partition(".."))
    if not before:
        hint = f"Write OLD..NEW, such as 0.16.4..{NEWEST}"
        raise ConfigError(f"'{text}' does not name two releases of DeepSpeed", where=OPTION, hint=hint)
    old = parse_version(before, where=OPTION)
    new = parse_version(after, where=OPTION) if after else NEWEST
    if old == new:
        raise ConfigError(f"both releases are {old}, so nothing changes", where=OPTION, hint="Name two")
    if old > new:
        hint = f"Write the older one first: {new}..{old}"
        raise ConfigError(f"{old} is later than {new}: this is no upgrade", where=OPTION, hint=hint)
    return Upgrade(old, new)


def check_upgrade(document: Document, run: Run, upgrade: Upgrade, *, select: Select = everything) -> Report:
    """What an upgrade changes for a ds_config, or for that which accelerate makes of a launch file.

    What becomes worse is an error or a warning.

    Raises:
        DocumentError: no part of the file is valid.
    """
    if is_launch_file(document.data):
        return select(_of_launch_file(document, run, upgrade))
    meant, valid, _, as_in_file = rename_sections(document, run)
    if valid.config is None:
        raise DocumentError(
            "is no valid ds_config", where=document.name, hint=f"'zerokit check' without {OPTION} says why"
        )
    old = Subject.of(valid, replace(run, deepspeed_version=upgrade.old))
    new = Subject.of(valid, replace(run, deepspeed_version=upgrade.new))
    found = (
        *_defects(old, new, upgrade),
        *_keys(meant.data, upgrade),
        *_defaults(new, upgrade),
        *_meanings(old, upgrade),
    )
    in_file = [as_in_file(replace(one, path=as_written(one.path, valid.written))) for one in found]
    return select(Report(findings_in_order(in_file, document), {}))


def _of_launch_file(document: Document, run: Run, upgrade: Upgrade) -> Report:
    if not runs_deepspeed(document.data) or named_ds_config(deepspeed_section(document.data)):
        return Report((), {})  # a named ds_config is checked as a file of its own
    made = check_upgrade(ds_config_of(document), launched_run(document.data, run), upgrade)
    found = (in_launch_file(one, document) for one in made.findings)
    return Report(findings_in_order(found, document), {})


def _defects(old: Subject, new: Subject, upgrade: Upgrade) -> Iterator[Finding]:
    before, after = upgrade.old, upgrade.new
    for defect in KNOWN_DEFECTS.values():
        was = defect.met_at(old) if defect.affects(before) else None
        is_now = defect.met_at(new) if defect.affects(after) else None
        page = f"(zerokit explain {defect.id})"
        if is_now is not None and was is None:
            since = f" since {defect.span.since}" if defect.span.since else ""
            message = f"a defect of DeepSpeed {after}{since}: {defect.summary} {page}"
            severity = defect.severity_in(new)
            yield Finding(is_now, message, defect.advice, severity=severity, rule="defect-comes")
        elif was is not None and is_now is None:
            fixed = defect.span.until if not defect.affects(after) else after
            message = f"fixed in DeepSpeed {fixed}: {defect.summary} {page}"
            yield Finding(was, message, None, severity="info", rule="defect-fixed")


def _keys(data: Any, upgrade: Upgrade) -> Iterator[Finding]:
    """Keys and the optimizer that only one of the releases knows, also those that the newest refuses."""
    before, after = upgrade.old, upgrade.new
    unknown_before = list(foreign_keys(data, before))
    unknown_after = list(foreign_keys(data, after))
    for path in (one for one in unknown_before if one not in unknown_after):
        verb = "refuses" if refused_at(path, before) else "ignores"
        message = f"DeepSpeed {after} reads '{path[-1]}', which {before} {verb}"
        yield Finding(path, message, None, severity="info", rule="key-read")
    for path in (one for one in unknown_after if one not in unknown_before):
        refuses = refused_at(path, after)
        message = f"DeepSpeed {after} {'refuses' if refuses else 'ignores'} '{path[-1]}', which {before} reads"
        yield Finding(path, message, "Remove the key", severity="error" if refuses else "warning", rule="key-not-read")
    path = ("optimizer", "type")
    named = str(value_at(data, path))
    if named.lower() in optimizers_at(after) - optimizers_at(before):
        message = f"DeepSpeed {after} has the optimizer '{named}', which {before} lacks"
        yield Finding(path, message, None, severity="info", rule="key-read")
    elif named.lower() in optimizers_at(before) - optimizers_at(after):
        message = f"DeepSpeed {after} has no optimizer '{named}'"
        yield Finding(path, message, "Use another optimizer", severity="error", rule="key-not-read")


def _defaults(new: Subject, upgrade: Upgrade) -> Iterator[Finding]:
    for path in keys_with_telling_defaults(new):
        then, now = default_at(path, upgrade.old), default_at(path, upgrade.new)
        if not new.is_absent(*path) or NO_DEFAULT in (then, now) or then == now:
            continue
        message = f"'{dotted(path)}' is absent: its default changes from {json.dumps(then)} to {json.dumps(now)}"
        hint = f'Add "{path[-1]}": {json.dumps(then)} to keep what {upgrade.old} does'
        place: KeyPath = path[:-1] if new.is_set(*path[:-1]) else ()
        yield Finding(place, message, hint, severity="warning", rule="default-changes")


def _meanings(old: Subject, upgrade: Upgrade) -> Iterator[Finding]:
    for change in CHANGES.values():
        if upgrade.old < change.since <= upgrade.new and change.when.holds(old):
            was = change.before[0].lower() + change.before[1:]
            message = f"changed in DeepSpeed {change.since}: before, {was}"
            yield Finding(split_dotted(change.at), message, None, severity="info", rule="meaning-changes")
