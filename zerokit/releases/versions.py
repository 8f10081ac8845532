"""What each supported release of DeepSpeed makes of a ds_config.

``tools/deepspeed_surface/extract.py`` writes the facts about keys into ``keys.json`` from the sources of
the releases. Changes of meaning and defects, which no key shows, are in ``zerokit/lint/defects.json``. Keys
are named by their path, under either name where DeepSpeed knows two.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from zerokit.documents import KeyPath, dotted, split_dotted
from zerokit.errors import ConfigError

SUPPORTED: Final = (
    *("0.14.0", "0.14.1", "0.14.2", "0.14.3", "0.14.4", "0.14.5"),
    *("0.15.0", "0.15.1", "0.15.2", "0.15.3", "0.15.4"),
    *("0.16.0", "0.16.1", "0.16.2", "0.16.3", "0.16.4", "0.16.5", "0.16.6", "0.16.7", "0.16.8", "0.16.9"),
    *("0.17.0", "0.17.1", "0.17.2", "0.17.3", "0.17.4", "0.17.5", "0.17.6"),
    *("0.18.0", "0.18.1", "0.18.2", "0.18.3", "0.18.4", "0.18.5", "0.18.6", "0.18.7", "0.18.8", "0.18.9"),
    *("0.19.0", "0.19.1", "0.19.2", "0.19.3", "0.19.4", "0.19.5", "0.19.6", "0.19.7", "0.19.8"),
)
"""Every release of DeepSpeed that there are facts about, oldest first."""


class Version(NamedTuple):
    """A release of DeepSpeed; versions compare in the order of their release."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def _version(text: str) -> Version:
    return Version(*map(int, text.split(".")))


_RELEASES: Final = tuple(map(_version, SUPPORTED))
OLDEST: Final = _RELEASES[0]
NEWEST: Final = _RELEASES[-1]


def parse_version(text: str, *, where: str | None = None) -> Version:
    """A version as people write it: ``0.16.4``, ``v0.16.4``, or ``0.16`` for the last release of 0.16.

    A build's suffix, as in ``0.16.4+cu121``, is ignored.

    Raises:
        ConfigError: no version, or one that there are no facts about; it names those that there are.
    """
    found = re.fullmatch(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\+.*)?", text.strip(), re.ASCII | re.DOTALL)
    hint = f"Give a release from {OLDEST} to {NEWEST}"
    if found is None:
        raise ConfigError(f"'{text}' is no version of DeepSpeed", where=where, hint=hint)
    series = [release for release in _RELEASES if release[:2] == (int(found[1]), int(found[2]))]
    if found[3] is None and series:
        return series[-1]
    version = Version(int(found[1]), int(found[2]), int(found[3] or 0))
    if version in series:
        return version
    if series:
        hint = f"The last release of {found[1]}.{found[2]} is {series[-1]}"
        raise ConfigError(f"there is no DeepSpeed {version}", where=where, hint=hint)
    raise ConfigError(f"DeepSpeed {text.strip()} is not supported", where=where, hint=hint)


@dataclass(frozen=True, slots=True)
class Span:
    """A run of releases."""

    since: Version | None
    """The first of them; None: it began before the oldest supported release."""
    until: Version | None
    """The first release after them; None: it lasts to the newest supported release."""

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, Version):
            return False
        return (self.since is None or self.since <= version) and (self.until is None or version < self.until)


def parse_span(text: str) -> Span:
    """``0.17.2 .. 0.17.5``: from the first to before the second; either may be left out."""
    since, _, until = (part.strip() for part in text.partition(".."))
    return Span(parse_version(since) if since else None, parse_version(until) if until else None)


NO_DEFAULT: Final = object()
"""There is no default: the key is absent unless written, or what is taken depends on other things."""


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """What is known of one key over the supported releases."""

    path: KeyPath
    """The name by which zerokit calls it."""
    spans: tuple[Span, ...]
    """The releases that know it: one span, but for keys that went and came back with another meaning."""
    defaults: tuple[tuple[Version, Any], ...]
    """From which release on the default is which, oldest first; empty if there is none. That of
    ``overlap_comm`` is None and means: true in stage 3, false otherwise."""

    @property
    def since(self) -> Version | None:
        """The first release that knows the key as it is known last; None: older than all supported."""
        return self.spans[-1].since if self.spans else None


def key_facts(path: KeyPath) -> KeyFacts | None:
    """The facts about a key; None if no supported release knows or refuses a key of that name."""
    name = dotted(_canonical(path))
    if name not in _keys() and name not in _table()["refused"]:
        return None
    facts = _keys().get(name, {"spans": []})
    return KeyFacts(
        path=split_dotted(name),
        spans=_spans(_known(facts)),
        defaults=tuple((_version(since), value) for since, value in facts.get("defaults", ())),
    )


def known_at(path: KeyPath, version: Version) -> bool:
    """Whether a release does something with a key, or hands it on to what may.

    True for every key in a section that DeepSpeed passes on, such as ``optimizer.params``.
    """
    return _treatment(path, version) == "known"


def refused_at(path: KeyPath, version: Version) -> bool:
    """Whether a release stops with an error because a key is there.

    It ignores other keys that it does not know, and in a section that refuses such keys, those
    whose value is "auto".
    """
    return _treatment(path, version) == "refused"


def default_at(path: KeyPath, version: Version) -> Any:
    """What a release takes if a key is absent, or :data:`NO_DEFAULT`. None is the JSON value null."""
    facts = key_facts(path)
    if facts is None or not any(version in span for span in facts.spans):
        return NO_DEFAULT
    return next((value for since, value in reversed(facts.defaults) if since <= version), NO_DEFAULT)


def optimizers_at(version: Version) -> frozenset[str]:
    """DeepSpeed's own optimizers, in lower case; it compares their names without regard to case."""
    return frozenset(name for name, rows in _table()["optimizers"].items() if _within(version, rows))


def schedulers_at(version: Version) -> frozenset[str]:
    """DeepSpeed's own learning-rate schedulers, by their exact names."""
    return frozenset(name for name, rows in _table()["schedulers"].items() if _within(version, rows))


@lru_cache(4096)
def _treatment(path: KeyPath, version: Version) -> Literal["known", "ignored", "refused"]:
    path = _canonical(path)
    is_open = is_strict = False
    for end in range(1, len(path) + 1):
        name = dotted(path[:end])
        facts = _keys().get(name)
        if _within(version, _table()["refused"].get(name, [])):
            return "refused"
        if facts is None and is_open:
            return "known"
        if facts is None or not _within(version, _known(facts)):
            return "refused" if is_strict else "ignored"
        is_open = facts.get("open", False)
        is_strict = _within(version, _table()["strict"].get(name, []))
    return "known"


def _spans(rows: list[list[str | None]]) -> tuple[Span, ...]:
    return tuple(
        Span(None if since is None else _version(since), None if until is None else _version(until))
        for since, until in rows
    )


def _within(version: Version, rows: list[list[str | None]]) -> bool:
    return any(version in span for span in _spans(rows))


def _known(facts: dict[str, Any]) -> list[list[str | None]]:
    rows: list[list[str | None]] = facts.get("spans", [[None, None]])
    return rows


def _canonical(path: KeyPath) -> KeyPath:
    """The path under the first name of each key, up to a list's index."""
    result: KeyPath = ()
    for key in path:
        if isinstance(key, int):
            break
        result = _second_names().get((*result, key), (*result, key))
    return result


@cache
def _second_names() -> dict[KeyPath, KeyPath]:
    names: dict[KeyPath, KeyPath] = {}
    for name, facts in _keys().items():
        path = split_dotted(name)
        names.update({(*path[:-1], other): path for other in facts.get("other_names", ())})
    return names


def _keys() -> dict[str, dict[str, Any]]:
    keys: dict[str, dict[str, Any]] = _table()["keys"]
    return keys


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name("keys.json").read_text(encoding="utf-8"))
    return table
