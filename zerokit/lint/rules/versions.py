"""The release of DeepSpeed that a config meets."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from zerokit.config.base import AUTO, ZERO, is_comment
from zerokit.config.key_index import canonical
from zerokit.config.load import load_valid_part
from zerokit.documents import Document, KeyPath, dotted, split_dotted, with_value
from zerokit.lint.number_formats import switch
from zerokit.lint.optimizer_facts import OPTIMIZER, optimizer_name, optimizer_type
from zerokit.lint.rule import Hit, rule
from zerokit.lint.subject import Subject
from zerokit.releases.versions import (
    NEWEST,
    NO_DEFAULT,
    Version,
    default_at,
    key_facts,
    known_at,
    optimizers_at,
    refused_at,
)


@rule("key-of-later-version")
def key_of_later_version(subject: Subject) -> Iterator[Hit]:
    """A key that the given release of DeepSpeed does not know"""
    version = subject.run.deepspeed_version
    if version is None:
        return
    for path in foreign_keys(subject.written, version):
        facts = key_facts(path)
        since = facts.since if facts is not None else None
        refuses = "refuses" if refused_at(path, version) else "ignores"
        message = f"DeepSpeed {version} {refuses} '{path[-1]}'"
        if since is not None and since > version:
            yield Hit(path, f"{message}, which came with {since}", f"Use DeepSpeed {since} or later")
        else:
            yield Hit(path, message, "Remove the key, or use another release of DeepSpeed")


def foreign_keys(written: Mapping[str, Any], version: Version) -> Iterator[KeyPath]:
    """The outermost keys that a release does not know, without those that request the newest's default."""
    for path, value in _unknown_keys(written, (), version):
        if refused_at(path, version) or not _is_default(path, value):
            yield path


def _unknown_keys(data: Any, path: KeyPath, version: Version) -> Iterator[tuple[KeyPath, Any]]:
    """The outermost keys that a release does not know, with their values."""
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        here = canonical((*path, key))
        if is_comment(key):
            continue
        if known_at(here, version):
            yield from _unknown_keys(value, here, version)
        else:
            yield here, value


def _is_default(path: KeyPath, value: Any) -> bool:
    """Whether the newest release would do the same without the key, so that an older one loses nothing."""
    if isinstance(value, Mapping):
        return all(is_comment(key) or _is_default((*path, key), part) for key, part in value.items())
    default = default_at(path, NEWEST)
    return bool(default is not NO_DEFAULT and default == value)


@rule("optimizer-of-later-version")
def optimizer_of_later_version(subject: Subject) -> Iterator[Hit]:
    """An optimizer that the given release of DeepSpeed does not have"""
    version, name = subject.run.deepspeed_version, optimizer_name(subject)
    if version is None or name is None or name not in optimizers_at(NEWEST):
        return
    if name not in optimizers_at(version):
        message = f"DeepSpeed {version} has no optimizer '{optimizer_type(subject)}'"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or a later release of DeepSpeed")


@rule("default-of-version")
def default_of_version(subject: Subject) -> Iterator[Hit]:
    """An absent key whose default differs between this release and the newest"""
    version = subject.run.deepspeed_version
    if version is None:
        return
    for path in keys_with_telling_defaults(subject):
        if not subject.is_absent(*path):
            continue
        then, now = default_at(path, version), default_at(path, NEWEST)
        if NO_DEFAULT in (then, now) or then == now:
            continue
        message = (
            f"'{dotted(path)}' is absent: DeepSpeed {version} takes {json.dumps(then)}, {NEWEST} {json.dumps(now)}"
        )
        place = path[:-1] if len(path) == 1 or subject.is_set(*path[:-1]) else ()
        yield Hit(place, message, f'Add "{path[-1]}" with the value that is meant')


def keys_with_telling_defaults(subject: Subject) -> Iterator[tuple[str, ...]]:
    """Keys whose defaults change what happens, where they act."""
    if subject.run.target != "trainer":  # for which the absence has a rule of its own
        yield ("gradient_clipping",)
    if subject.value("bf16", "enabled") is True:
        yield "bf16", "check_grad_overflow"
        yield "bf16", "immediate_grad_update"
    if subject.offloads_optimizer and subject.is_set(ZERO, "offload_optimizer"):
        yield ZERO, "offload_optimizer", "pin_memory"
    if subject.offload_param is not None and subject.stage == 3 and subject.is_set(ZERO, "offload_param"):
        yield ZERO, "offload_param", "pin_memory"


@rule("changed-meaning")
def changed_meaning(subject: Subject) -> Iterator[Hit]:
    """A setting that this release of DeepSpeed reads differently from the newest"""
    version = subject.run.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import CHANGES

    cases = _cases(subject)
    for change in CHANGES.values():
        case = next((words for words, one in cases if version < change.since and change.when.holds(one)), None)
        if case is not None:
            before = change.before[0].lower() + change.before[1:]
            message = f"in DeepSpeed {version}{case}, {before} (otherwise since {change.since})"
            hint = f"Use DeepSpeed {change.since} or later, or mind it"
            severity = change.severity if not case or change.severity == "info" else "warning"
            yield Hit(split_dotted(change.at), message, hint, severity=severity)


def _cases(subject: Subject) -> list[tuple[str, Subject]]:
    """The config as it is, and with what the script may fill in, in words."""
    return [("", subject), *((f", if the script {words}", one) for words, one in filled(subject))]


@rule("known-defect")
def known_defect(subject: Subject) -> Iterator[Hit]:
    """A setting that meets a known defect of this DeepSpeed release"""
    version = subject.run.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import KNOWN_DEFECTS

    cases = _cases(subject)
    for defect in KNOWN_DEFECTS.values():
        if not defect.affects(version):
            continue
        found = ((case, one, defect.met_at(one)) for case, one in cases)
        case, met, path = next((item for item in found if item[2] is not None), ("", subject, None))
        if path is not None:
            key = defect.at.removeprefix(f"{ZERO}.")
            message = f"DeepSpeed {version} with '{key}'{case}: {defect.summary} (zerokit explain {defect.id})"
            severity = "warning" if case else defect.severity_in(met)
            yield Hit(subject.nearest_set(*map(str, path)), message, defect.advice, severity=severity)


Filling = tuple[str, Mapping[KeyPath, Any]]
"""What the script does, and the values that follow."""

_PRECISIONS: tuple[Filling, ...] = (
    ("trains in bf16", {("bf16", "enabled"): True, ("fp16", "enabled"): False}),
    ("trains in fp16", {("fp16", "enabled"): True, ("bf16", "enabled"): False}),
)
_NUMBERS: tuple[Filling, ...] = (
    ("accumulates gradients", {("gradient_accumulation_steps",): 2}),
    ("accumulates 3 or more micro batches", {("gradient_accumulation_steps",): 3}),
    ("clips gradients", {("gradient_clipping",): 1.0}),
    ("sets a learning rate other than 0.001", {(*OPTIMIZER, "lr"): 3e-5}),
)


def filled(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """The config with one or two of the values that the script fills, and what the script then does."""
    if subject.run.recipe is not None or subject.run.target == "deepspeed":
        return
    precisions = [one for one in _PRECISIONS if _may_train(subject, str(next(iter(one[1]))[0]))]
    numbers = [one for one in _NUMBERS if all(subject.is_set(*map(str, path), to=AUTO) for path in one[1])]
    yield from (_with(subject, one) for one in (*precisions, *numbers))
    yield from (_with(subject, *pair) for pair in product(precisions, numbers))


def _may_train(subject: Subject, section: str) -> bool:
    """Whether the file leaves it to the script to switch a precision on."""
    states = {name: switch(subject, name) for name in ("bf16", "fp16")}
    if states[section] is not None or True in states.values() or subject.is_uncertain(section, "enabled"):
        return False
    return subject.is_set(section) or not subject.may_be_plain


def _with(subject: Subject, *fillings: Filling) -> tuple[str, Subject]:
    data: Any = subject.written
    for path, value in (item for _, values in fillings for item in values.items()):
        data = with_value(data, path, value)
    valid = load_valid_part(Document(data, "ds_config"))
    assert valid.config is not None
    words = " and ".join(words for words, _ in fillings)
    return words, replace(subject, config=valid.config, written=valid.written)
