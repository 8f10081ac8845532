"""The release of DeepSpeed that a config meets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from zerokit.config.base import ZERO, is_comment
from zerokit.config.key_index import canonical
from zerokit.documents import KeyPath, dotted, from_dotted
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.optimizer_facts import optimizer_name, optimizer_type
from zerokit.lint.rule import Hit, Rules
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

rule = Rules("versions")


@rule(
    "key-of-later-version",
    bad=zero(2, compute_grad_norm=True),
    good=zero(2),
    given={"deepspeed_version": Version(0, 16, 4)},
)
def key_of_later_version(subject: Subject) -> Iterator[Hit]:
    """A key that the given release of DeepSpeed does not know

    Files travel: a config written for today's DeepSpeed is used with last year's on a cluster. Most sections
    below `zero_optimization` refuse a key that they do not know, when training starts. At the top, and in
    many other sections, older releases ignore it silently, and the setting does nothing.

    The rule runs with `--deepspeed-version` only.

    Source: the sources of the releases from 0.14.0 on, compared key by key.
    """
    version = subject.run.deepspeed_version
    if version is None:
        return
    for path, value in _foreign_keys(subject.written, (), version):
        if not refused_at(path, version) and _is_default(path, value):
            continue
        facts = key_facts(path)
        since = facts.since if facts is not None else None
        refuses = "refuses" if refused_at(path, version) else "ignores"
        message = f"DeepSpeed {version} {refuses} '{path[-1]}'"
        if since is not None and since > version:
            yield Hit(path, f"{message}, which came with {since}", f"Use DeepSpeed {since} or later")
        else:
            yield Hit(path, message, "Remove the key, or use another release of DeepSpeed")


def _foreign_keys(data: Any, path: KeyPath, version: Version) -> Iterator[tuple[KeyPath, Any]]:
    """The outermost keys that a release does not know, with their values."""
    if not isinstance(data, Mapping):
        return
    for key, value in data.items():
        here = canonical((*path, key))
        if is_comment(key):
            continue
        if known_at(here, version):
            yield from _foreign_keys(value, here, version)
        else:
            yield here, value


def _is_default(path: KeyPath, value: Any) -> bool:
    """Whether the newest release would do the same without the key, so that an older one loses nothing."""
    if isinstance(value, Mapping):
        return all(is_comment(key) or _is_default((*path, key), part) for key, part in value.items())
    default = default_at(path, NEWEST)
    return bool(default is not NO_DEFAULT and default == value)


@rule(
    "optimizer-of-later-version",
    bad={**ONE_SAMPLE, "optimizer": {"type": "Muon", "params": {"muon_lr": 0.02, "adam_lr": 3e-4}}},
    good={**ONE_SAMPLE, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}},
    given={"deepspeed_version": Version(0, 16, 4)},
)
def optimizer_of_later_version(subject: Subject) -> Iterator[Hit]:
    """An optimizer that the given release of DeepSpeed does not have

    DeepSpeed then looks for a class of that name in `torch.optim` and stops: "not a supported DeepSpeed
    Optimizer". Muon came with 0.17.6.

    Source: `DEEPSPEED_OPTIMIZERS` in `deepspeed/runtime/config.py` of the releases.
    """
    version, name = subject.run.deepspeed_version, optimizer_name(subject)
    if version is None or name is None or name not in optimizers_at(NEWEST):
        return
    if name not in optimizers_at(version):
        message = f"DeepSpeed {version} has no optimizer '{optimizer_type(subject)}'"
        yield Hit(("optimizer", "type"), message, "Use AdamW, or a later release of DeepSpeed")


@rule(
    "default-of-version",
    severity="info",
    bad=zero(2),
    good={**zero(2), "gradient_clipping": 1.0},
    given={"deepspeed_version": Version(0, 18, 0)},
)
def default_of_version(subject: Subject) -> Iterator[Hit]:
    """An absent key whose default differs between this release and the newest

    DeepSpeed changed defaults without saying so: gradients are clipped at 1.0 since 0.19.3, and were not
    before; offloaded memory is pinned since 0.19.5. A file that leaves such a key out trains differently
    after an upgrade.

    Write the value that is meant.

    Source: the sources of the releases from 0.14.0 on, compared key by key.
    """
    version = subject.run.deepspeed_version
    if version is None:
        return
    for path in _telling_keys(subject):
        if not subject.is_absent(*path):
            continue
        then, now = default_at(path, version), default_at(path, NEWEST)
        if NO_DEFAULT in (then, now) or then == now:
            continue
        message = (
            f"'{dotted(path)}' is absent: DeepSpeed {version} takes {_shown(then)}, {NEWEST} {_shown(now)}"
        )
        place = path[:-1] if len(path) == 1 or subject.is_set(*path[:-1]) else ()
        yield Hit(place, message, f'Add "{path[-1]}" with the value that is meant')


def _telling_keys(subject: Subject) -> Iterator[tuple[str, ...]]:
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


def _shown(value: Any) -> str:
    return json.dumps(value)


@rule(
    "changed-meaning",
    severity="info",
    bad={**ONE_SAMPLE, "fp16": {"enabled": True, "fp16_master_weights_and_grads": True}, ZERO: {"stage": 1}},
    good={**ONE_SAMPLE, "fp16": {"enabled": False}, ZERO: {"stage": 1}},
    given={"deepspeed_version": Version(0, 18, 0)},
)
def changed_meaning(subject: Subject) -> Iterator[Hit]:
    """A setting that this release of DeepSpeed reads differently from the newest

    Some settings are as old as DeepSpeed and have come to mean something else: `WarmupLR` once rose to 0.001
    whatever the optimizer said, Muon once did without stage 3, and buffers such as the frequencies of rotary
    embeddings were converted to 16 bits. What an older release refuses, or does quite otherwise, is an error.

    The rule runs with `--deepspeed-version` only.

    Source: DeepSpeed's pull requests, and the sources of the releases on both sides.
    """
    version = subject.run.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import CHANGES

    for change in CHANGES.values():
        if version < change.since and change.when.holds(subject):
            before = change.before[0].lower() + change.before[1:]
            message = f"in DeepSpeed {version}, {before} (otherwise since {change.since})"
            hint = f"Use DeepSpeed {change.since} or later, or mind it"
            yield Hit(from_dotted(change.at), message, hint, severity=change.severity)


@rule(
    "known-defect",
    bad={**ONE_SAMPLE, "gradient_accumulation_steps": 8, ZERO: {"stage": 2}},
    good={**ONE_SAMPLE, "gradient_accumulation_steps": 8, ZERO: {"stage": 1}},
    given={"deepspeed_version": Version(0, 18, 2)},
)
def known_defect(subject: Subject) -> Iterator[Hit]:
    """A setting that meets a known defect of this DeepSpeed release

    zerokit knows some fifty defects of DeepSpeed 0.14 to 0.19 that depend on the config: gradients lost in
    accumulation, races of overlapped communication, weights that are not updated. What always shows and does
    harm is an error; what may show, or only costs speed or memory, a warning.

    The rule runs with `--deepspeed-version` only, and gives the defect's name: `zerokit explain NAME` says
    when it shows. Defects that the newest release still has are rules of their own, such as
    `fp16-without-zero`.

    Source: DeepSpeed's pull requests and the sources of the releases; many were measured by training a small
    model with the release before and after.
    """
    version = subject.run.deepspeed_version
    if version is None:
        return
    from zerokit.lint.defects import KNOWN_DEFECTS

    for defect in KNOWN_DEFECTS.values():
        if not defect.affects(version):
            continue
        path = defect.met_at(subject)
        if path is not None:
            message = f"{defect.summary} (DeepSpeed {version}; zerokit explain {defect.id})"
            yield Hit(path, message, defect.advice, severity=defect.severity_in(subject))
