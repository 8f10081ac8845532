"""Keys that are no text, and keys that are comments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from zerokit.config.base import ZERO, is_comment
from zerokit.config.key_index import section_at
from zerokit.documents import KeyPath, dotted
from zerokit.findings import Edit, Move
from zerokit.lint.examples import ONE_SAMPLE, zero
from zerokit.lint.rule import Hit, Rule, Rules, add
from zerokit.lint.subject import Subject

rule = Rules("structure")


add(
    Rule(  # not in the table: no JSON has an integer for a key
        "bad-key",
        "structure",
        "error",
        "A key that is not a string",
        "Keys of JSON are strings. A config that a script or a YAML file made may hold numbers or `true` as "
        "keys,\nwhich DeepSpeed ignores.\n\nPut the key in double quotes, or remove it.",
        bad=cast(Any, {**zero(2), 3: 1}),
        good=zero(2),
    )
)


@rule(
    "refused-comment",
    stops=True,
    bad={**ONE_SAMPLE, ZERO: {"_comment": "the usual", "stage": 2}},
    good={**zero(2), "_comment": "the usual"},
)
def refused_comment(subject: Subject) -> Iterator[Hit]:
    """A comment key in a section that refuses unknown keys.

    JSON has no comments, so people write keys such as `_comment`. At the top of the file, and in the
    sections that it reads with `dict.get`, DeepSpeed ignores them. In those that it parses with pydantic,
    and among the parameters of the optimizer and the scheduler, it refuses them like any other unknown key.

    Move the comment to the top of the file.

    Source: `DeepSpeedConfigModel` in `deepspeed/runtime/config_utils.py` (`extra="forbid"`).
    """
    taken = set(subject.written)
    for path in _comments(subject.written, ()):
        section = section_at(path[:-1], subject.written)
        if section is None or section.read_by == "lookup":
            continue
        name = str(path[-1])
        if name in taken:
            name = "_".join(["", *(str(key).strip("_/ ") for key in path)])
        fix: tuple[Edit, ...] = (Move(path, (name,)),) if name not in taken else ()
        taken.add(name)
        message = f"DeepSpeed refuses the comment '{path[-1]}' inside '{dotted(path[:-1])}'"
        free = name == str(path[-1])
        where = "where DeepSpeed ignores it" if free else f"as '{name}'"
        yield Hit(path, message, f"Move it to the top of the file, {where}", fix)


def _comments(data: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if is_comment(key):
                yield (*path, key)
            else:
                yield from _comments(value, (*path, key))
