"""Reading a ds_config: strictly, or as much of it as is valid."""

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from zerokit.config.base import second_names
from zerokit.config.key_index import canonical, section_at, sections
from zerokit.config.launch_file import (
    FILE_KEY,
    SECTION,
    deepspeed_section,
    ds_config_of,
    find_ds_config,
    is_launch_file,
    named_ds_config,
)
from zerokit.config.mistakes import Mistake, mistakes
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.repairs import edited
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import Document, KeyPath, read_document, value_at
from zerokit.errors import ConfigError, DocumentError, join_hints
from zerokit.findings import Finding, Move, SetValue


class ValidPart(NamedTuple):
    """A ds_config as far as it is valid."""

    config: DeepSpeedConfig | None
    """What is valid, with DeepSpeed's defaults for all the rest; None if the document is no section at
    all."""
    findings: list[Finding]
    """What is not valid, in the order of the lines."""
    written: dict[str, Any]
    """What is valid, under the file's names. A value that plainly means another, such as `"8"` for 8, is
    replaced by that."""
    doubtful: frozenset[KeyPath] = frozenset()
    """Sections, as the models spell them, with a key that was not understood and may be any, so that "absent"
    may only mean "mistyped"; ``()`` is the top."""
    misread: frozenset[KeyPath] = frozenset()
    """Keys, as the models spell them, that the file seems to give, but misspelled, misplaced or with a value
    that is not valid."""


def read_ds_config(path: str | Path) -> Document:
    """Read the file of a ds_config as DeepSpeed does: comments and the like are no mistakes.

    Of the YAML of ``accelerate launch`` this is the ds_config that it names, or that accelerate makes of it.

    Raises:
        DocumentError: it cannot be read, or starts no DeepSpeed.
    """
    document = read_document(path, lenient=True)
    if not is_launch_file(document.data):
        return document
    named = named_ds_config(deepspeed_section(document.data))
    if named is None:
        return ds_config_of(document)
    found = find_ds_config(document)
    if found is None:
        where = document.where((SECTION, FILE_KEY))
        raise DocumentError(f"names '{named}', which is not here", where=where, hint="Name that ds_config")
    return read_document(found, lenient=True)


def load_ds_config(
    source: str | Path | Document | Mapping[str, Any], *, past_ignored: bool = False
) -> DeepSpeedConfig:
    """Read a ds_config from a file, from what was read of one, or from data.

    Each section is checked by itself; see `zerokit.lint` for what spans sections. Mistakes that are only
    warnings are let through: a value that DeepSpeed reads for what it plainly means is put right, a key that
    means nothing is left out.

    Args:
        source: the file, or what it holds.
        past_ignored: also leave out what DeepSpeed ignores; see :func:`is_passed_over`.

    Raises:
        DocumentError: the file cannot be read.
        ConfigError: a key or value is not valid; names the first one and how many more there are.
    """
    if isinstance(source, Document):
        document = source
    else:
        document = Document(source, "ds_config") if isinstance(source, Mapping) else read_ds_config(source)
    config, findings, *_ = load_valid_part(document)
    errors = [finding for finding in findings if finding.severity == "error"]
    if past_ignored:
        errors = [finding for finding in errors if not is_passed_over(finding, document)]
    if errors or config is None:
        raise as_error(errors or findings, document)
    return config


def is_passed_over(finding: Finding, document: Document) -> bool:
    """Whether the finding is about a key that DeepSpeed does not read, whatever it was meant to be."""
    if finding.rule not in ("unknown-key", "misplaced-key"):
        return False
    section = section_at(finding.path[:-1], document.data)
    return section is not None and section.read_by == "lookup"


def check_ds_config(document: Document) -> list[Finding]:
    """Everything that is wrong inside the sections of a ds_config, in the order of its lines."""
    return load_valid_part(document).findings


def load_valid_part(document: Document) -> ValidPart:
    """Read as much of a ds_config as is valid, and name the rest.

    Every error is found, also in what can only be read once others are out of the way. In YAML, numbers
    are understood as people write them: "5e8", "1k", "1_000". In JSON they are findings.
    """
    data = plain(document.data)
    findings: list[Finding] = []
    dropped: dict[KeyPath, KeyPath | None] = {}
    before: list[Mistake] = []
    while True:
        try:
            config = DeepSpeedConfig.model_validate(data)
        except ValidationError as error:
            found = mistakes(error, document, data)
        else:
            break
        # A dropped key can make its section invalid: that is no second mistake.
        fresh = [mistake for mistake in found if not _follows_from(mistake.finding.path, dropped)]
        fresh = [mistake for mistake in fresh if not _is_a_list_to_try(mistake, data)]
        findings += [mistake.finding for mistake in fresh if not _is_understood(mistake, document)]
        data, doomed = _next(data, found)
        if () in doomed or found == before:
            return ValidPart(None, _in_line_order(findings), {}, frozenset({()}))
        before = found
        dropped |= doomed
    findings += _second_names(data, document)
    doubtful, misread = _not_understood(dropped, document.data)
    return ValidPart(config, _in_line_order(findings), data, doubtful, misread)


def _second_names(data: Any, document: Document) -> Iterator[Finding]:
    """Keys under a name that only DeepSpeed's own models know, such as `prefetch_bucket_size`.

    `bfloat16` is none of them: DeepSpeed documents it as the older name of `bf16`.
    """
    for path in (("zero_optimization",), ("tensor_parallel",)):
        section = data.get(path[0])
        for name, other in second_names(sections()[path]).items() if isinstance(section, dict) else ():
            if other in section:
                here = (*path, other)
                message = f"'{other}' is a second name of '{name}', the only one that other programs know"
                line, column = document.position(here) or (None, None)
                fix = (Move(here, (*path, name)),)
                yield Finding(here, message, f"Call it '{name}'", line, column, "info", "deprecated-key", fix)


def _next(data: Any, found: list[Mistake]) -> tuple[Any, dict[KeyPath, KeyPath | None]]:
    """The config with what can be fixed, and the faulty keys that are left out of it.

    Each of those keys comes with the key that was meant, if known.
    """
    doomed = {_key_to_drop(mistake.finding): mistake.meant for mistake in found if mistake.edit is None}
    for mistake in found:
        doomed |= dict.fromkeys(path for path in mistake.folded if isinstance(path[-1], str))
    for mistake in found:
        if mistake.edit is not None:
            data = edited(data, [mistake.edit])
    return _without(data, doomed), doomed


def _key_to_drop(finding: Finding) -> KeyPath:
    """The key without which the rest can still be checked: a list or its section is dropped as a whole."""
    path = finding.path[:-1] if finding.rule == "missing-key" else finding.path
    end = next((index for index, key in enumerate(path) if isinstance(key, int)), len(path))
    return path[:end]


def _follows_from(path: KeyPath, dropped: Collection[KeyPath]) -> bool:
    return any(path[:end] in dropped for end in range(len(path) + 1))


def _is_understood(mistake: Mistake, document: Document) -> bool:
    """Whether a string is a number in YAML, where quotes and suffixes do not matter."""
    if not document.is_yaml or not isinstance(mistake.edit, SetValue) or mistake.finding.rule != "wrong-type":
        return False
    return isinstance(mistake.edit.value, int | float) and not isinstance(mistake.edit.value, bool)


def _is_a_list_to_try(mistake: Mistake, data: Any) -> bool:
    """Whether `deepspeed --autotuning` tries the values of a list one after the other."""
    path = mistake.finding.path
    if value_at(data, ("autotuning", "enabled")) is not True or any(isinstance(key, int) for key in path):
        return False
    return isinstance(value_at(data, path), list) and mistake.finding.rule in ("wrong-type", "bad-value")


def _not_understood(
    dropped: Mapping[KeyPath, KeyPath | None], data: Any
) -> tuple[frozenset[KeyPath], frozenset[KeyPath]]:
    """The fields `doubtful` and `misread` of :class:`ValidPart`."""
    doubtful: set[KeyPath] = set()
    misread: set[KeyPath] = set()
    for path, meant in dropped.items():
        first = canonical(path)
        if first in REMOVED_KEYS:
            continue  # understood well enough
        model = section_at(first[:-1], data)
        known = model is None or first[-1] in model.model_fields
        meant = first if known else meant
        if meant is None:
            doubtful.add(first[:-1])
        else:
            misread.add(meant)
    return frozenset(doubtful), frozenset(misread)


def _without(data: Any, doomed: Collection[KeyPath], path: KeyPath = ()) -> Any:
    """A copy of `data` without the keys at the paths `doomed`."""
    if not isinstance(data, dict):
        return data
    return {key: _without(value, doomed, (*path, key)) for key, value in data.items() if (*path, key) not in doomed}


def _in_line_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: (finding.line or 0, finding.column or 0))


def as_error(
    problems: list[Finding],
    document: Document,
    *,
    where: str | None = None,
    options: Sequence[str] = (),
    named: Collection[Finding] | None = None,
) -> ConfigError:
    """The first of `problems` as an exception, with the number of the others and the command that lists them.

    Args:
        where: the place of the first; that in `document` by default.
        options: with which ``zerokit check`` finds them.
        named: what it finds in the file without the run; all of `problems` by default.
    """
    first, *others = problems
    where = where or document.where(first.path)
    if not others:
        return ConfigError(first.message, where=where, hint=first.hint)
    hint = first.hint
    known = None if named is None else {(one.path, one.message) for one in named}
    found = [one for one in problems if known is None or (one.path, one.message) in known]
    if found and Path(document.name).is_file():
        command = shlex.join(["zerokit", "check", document.name, *options])
        hint = join_hints(hint, f"{command} names {'all' if found == problems else 'those of the file'}")
    return ConfigError(f"{first.message} (and {len(others)} more)", where=where, hint=hint)


def plain(data: Any) -> Any:
    """`data` with any kind of mapping or tuple made a dict or list, as a JSON reader would give it."""
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(item) for item in data]
    return data
