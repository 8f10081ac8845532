"""What is wrong with a ds_config: the models' errors in words, each with the edit that fixes it where there
is one.

The models are stricter than DeepSpeed. The severity says what DeepSpeed does: it reads many values for what
they plainly mean, and ignores most unknown keys.
"""

import json
from collections import Counter, defaultdict
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from zerokit.config.base import AUTO, Reader, Tested
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.key_index import as_written, canonical, field_at, section_at
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.repairs import FALSE_WORDS, TRUE_WORDS, Fixer, choices_at, deepspeed_reads_as, key_path
from zerokit.config.unknown_keys import Meaning, meaning_of
from zerokit.documents import Document, KeyPath, dotted, has_value, value_at
from zerokit.errors import nearest
from zerokit.findings import Edit, Finding, Move, Remove, SetValue, Severity
from zerokit.validation import EXPECTED, bound_words, format_value

MOST_LISTED = 100
"""Mistakes of one kind in one section that are reported one by one; the others share a finding."""

_IN_JSON = {"text": "a string", "a list": "a list [...]", "a mapping": "a section {...}"}
_EXPECTED = {kind: _IN_JSON.get(words, words) for kind, words in EXPECTED.items()}
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}

_DROPS_AUTO: tuple[KeyPath, ...] = (
    ("zero_optimization",),
    ("zero_optimization", "offload_optimizer"),
    ("zero_optimization", "offload_param"),
)
"""Sections in which DeepSpeed takes the word "auto" for an absent key, whatever the key."""

_PYTHON_OBJECTS = ("tensor_parallel.dtype", "tensor_parallel.tp.mpu", "tensor_parallel.tp.tp_group")
"""Keys of DeepSpeed's that only a script can give, because they take Python objects."""


class Mistake(NamedTuple):
    """One error of the models."""

    finding: Finding
    edit: SetValue | Remove | None = None
    """The edit after which the rest of the config can be read as if the value were right."""
    meant: KeyPath | None = None
    """What an unknown key was meant to be, as the models spell it; itself if another program reads it, None
    where that is not known."""
    folded: tuple[KeyPath, ...] = ()
    """More keys that the finding covers."""


class Explainer:
    """One error with its place and value; the classes for keys and for values derive from it."""

    def __init__(self, detail: ErrorDetails, document: Document, fixer: Fixer) -> None:
        self.kind, self.value = detail["type"], detail["input"]
        self.context: dict[str, Any] = detail.get("ctx") or {}
        self.text = detail["msg"]
        self.path = key_path(detail["loc"])
        self.document = document
        self.fixer = fixer
        self.data = fixer.data
        self.name = _name(self.path)

    @property
    def reader(self) -> Reader:
        """How DeepSpeed reads the section that it is in."""
        model = section_at(self.path[:-1], self.data)
        return model.read_by if model is not None else "lookup"

    def found(
        self,
        rule: str,
        message: str,
        hint: str,
        severity: Severity = "error",
        fix: tuple[Edit, ...] = (),
        edit: SetValue | Remove | None = None,
    ) -> Mistake:
        place = self.document.position(self.path)
        line, column = place if place is not None else (None, None)
        return Mistake(Finding(self.path, message, hint, line, column, severity, rule, fix), edit)


def mistakes(error: ValidationError, document: Document, data: Any = None) -> list[Mistake]:
    """All of `error`, in the order of the lines of `document`.

    Args:
        data: the document's data, or what is left of it after some of it was dropped or fixed.
    """
    data = document.data if data is None else data
    details = error.errors(include_url=False)
    fixer = Fixer(data, frozenset((key_path(detail["loc"]), detail["type"]) for detail in details))
    folded: dict[tuple[KeyPath, bool], list[ErrorDetails]] = defaultdict(list)
    alike = Counter[tuple[KeyPath, bool]]()
    found: list[Mistake] = []
    for detail in details:
        kind = key_path(detail["loc"])[:-1], detail["type"] == "extra_forbidden"
        alike[kind] += 1
        if alike[kind] <= MOST_LISTED:
            found.append(_mistake(detail, document, fixer))
        else:
            folded[kind].append(detail)
    found += [_folded(rest, document, fixer) for rest in folded.values()]
    return sorted(found, key=lambda mistake: (mistake.finding.line or 0, mistake.finding.column or 0))


def _mistake(detail: ErrorDetails, document: Document, fixer: Fixer) -> Mistake:
    if detail["type"] == "extra_forbidden":
        return UnknownKey(detail, document, fixer).mistake()
    of = WrongValue(detail, document, fixer)
    if of.kind == "missing":
        section = dotted(of.path[:-1])
        message = f"the key {of.name} is missing from '{section}'"
        return of.found("missing-key", message, f"Add it: {_why_needed(of.path)}")
    if of.kind == "invalid_key":
        message = f"the key {of.path[-1]} is not a string"
        return of.found("bad-key", message, "Put it in double quotes")
    return of.mistake()


def _folded(details: list[ErrorDetails], document: Document, fixer: Fixer) -> Mistake:
    """Errors that are alike, in one."""
    of = Explainer(details[0], document, fixer)
    section = f"'{dotted(of.path[:-1])}'" if of.path[:-1] else "the top of the file"
    paths = tuple(key_path(detail["loc"]) for detail in details)
    if of.kind != "extra_forbidden":
        mistake = of.found("bad-value", f"{len(paths):,} more mistakes in {section}", "Fix those above")
    else:
        severity: Severity = "warning" if of.reader == "lookup" else "error"
        message = f"{len(paths):,} more keys at {section} that DeepSpeed does not read"
        mistake = of.found("unknown-key", message, "Name a file for DeepSpeed", severity)
    return mistake._replace(folded=paths)


def _why_needed(path: KeyPath) -> str:
    if path[-1] == "type":
        return f"without it DeepSpeed ignores the whole section '{dotted(path[:-1])}'"
    return "without it DeepSpeed fails when it starts"


class _Words(NamedTuple):
    rule: str
    message: str
    hint: str
    severity: Severity = "error"


class WrongValue(Explainer):
    """An error of a value."""

    def mistake(self) -> Mistake:
        rule, message, hint, severity = self._words()
        if self.value == AUTO and rule == "unfilled-auto":
            return self.found(rule, message, hint, severity)
        edit = self.fixer.value_for(self.path, self.value)
        if edit is None and "meant" in self.context:
            edit = SetValue(self.path, self.context["meant"])
        if edit is None:  # What cannot be put right, DeepSpeed cannot read well.
            return self.found(rule, message, hint)
        hint = (
            "Remove the key" if isinstance(edit, Remove) else f"Write {format_value(edit.value, name_strings=False)}"
        )
        return self.found(rule, message, hint, severity, (edit,), edit)

    def _words(self) -> _Words:
        kind, value, name = self.kind, self.value, self.name
        if value == AUTO:
            hint = f"Write a value, or remove the key{self._default_in_words()}"
            effect: Severity = "warning" if self._is_dropped_in_silence() else "error"
            return _Words("unfilled-auto", f'{name} is "auto", which is not filled in here', hint, effect)
        if kind == "bool_type" and isinstance(value, str) and self.reader != "model" and not self._tested():
            return self._string_switch()
        if kind in _EXPECTED:
            severity: Severity = "warning" if self._is_read_well() else "error"
            message = f"{name} must be {_EXPECTED[kind]}, not {format_value(value)}"
            return _Words("wrong-type", message, self._hint_for_type(), severity)
        if (limit := bound_words(kind, self.context)) is not None:
            message = f"{name} must be {limit}, not {format_value(value)}"
            return _Words("out-of-range", message, f"Write a number of {limit}")
        if kind in _LENGTHS:
            words, key = _LENGTHS[kind]
            count = f"{words} {self.context[key]} values"
            message = f"{name} must hold {count}, not {len(value)}"
            return _Words("bad-value", message, f"Write a list of {count}")
        if kind in ("literal_error", "string_pattern_mismatch", "string_too_short"):
            return self._not_a_choice()
        return _Words("bad-value", self.text, str(self.context.get("hint", "Correct the value")))

    def _is_dropped_in_silence(self) -> bool:
        """Whether DeepSpeed starts with this "auto", and the key's default applies.

        The models of `zero_optimization` drop the word (`DeepSpeedConfigModel.__init__`), and nothing else
        reads that section. But at an "auto" of the batch sizes DeepSpeed stops, so that somebody must fill
        them, who then stops at this one.
        """
        if canonical(self.path)[:-1] not in _DROPS_AUTO:
            return False
        sizes = [self.data.get(key) for key in (TRAIN, MICRO, STEPS)]
        return AUTO not in sizes and any(isinstance(size, int) for size in sizes[:2])

    def _string_switch(self) -> _Words:
        text = self.value.strip().lower()
        if text in TRUE_WORDS:
            message = f"{self.name} is {format_value(self.value)}, which DeepSpeed reads as true: any text is"
            return _Words("string-switch", message, "Write true", "warning")
        if text in FALSE_WORDS:
            message = f"{self.name} is {format_value(self.value)}, which DeepSpeed reads as true: any text is"
            return _Words("string-switch", message, "Write false")
        message = f"{self.name} must be true or false, not {format_value(self.value)}"
        return _Words("string-switch", message, "Write true or false")

    def _is_read_well(self) -> bool:
        """Whether DeepSpeed, less strict than zerokit, reads the value as it is plainly meant."""
        types = {"int_type": int, "float_type": float, "bool_type": bool}
        wanted = types.get(self.kind)
        if wanted is None or self.value is None:
            return False
        if self.reader == "model" and isinstance(self.value, str) and self._tested():
            return False
        if self.reader == "model":
            return type(self.value) is not bool and deepspeed_reads_as(self.value, wanted) is not None
        passes = all(item.numbers for item in self._tested())
        return wanted is bool and not isinstance(self.value, bool) and self.value in (0, 1) and passes

    def _tested(self) -> list[Tested]:
        """The mark of a value at which DeepSpeed looks more closely than at others of its section."""
        field = field_at(self.path, self.data)
        return [item for item in field.metadata if isinstance(item, Tested)] if field else []

    def _not_a_choice(self) -> _Words:
        value, path = self.value, self.path
        choices = choices_at(path, self.data)
        if not choices:
            hint = "Write a name without dots" if self.kind == "string_pattern_mismatch" else "Write a name"
            return _Words("bad-value", f"{self.name} cannot be {format_value(value)}", hint)
        listed = ", ".join(json.dumps(choice) for choice in choices)
        one_of = f"one of {listed}" if len(choices) > 1 else listed
        message = f"{self.name} must be {one_of}, not {format_value(value)}"
        if isinstance(value, str):
            if any(value == str(choice) for choice in choices):
                severity: Severity = "warning" if self.reader == "model" else "error"
                return _Words("wrong-type", message, "Remove the quotes", severity)
            close = nearest(value, [str(choice) for choice in choices])
            return _Words("bad-value", message, f"Did you mean '{close}'?" if close else "Write one of them")
        return _Words("bad-value", message, "Write one of them" if len(choices) > 1 else f"Write {listed}")

    def _hint_for_type(self) -> str:
        kind, value, path = self.kind, self.value, self.path
        if value is None:
            required = path[-1:] == ("type",) or path[-2:] == ("scheduler", "params")
            if path == ("gradient_clipping",):
                return "Write 0 for no clipping, or remove the key for DeepSpeed's default, 1.0"
            return f"Write {_EXPECTED[kind]}" + ("" if required else f", or remove the key{self._default_in_words()}")
        if kind == "int_type" and isinstance(value, float) and abs(value) >= 2**63:
            return "Write a smaller whole number"
        if kind in ("model_type", "dict_type") and path == ("zero_optimization",):
            return 'Write {"stage": ' + (str(value) if value in (0, 1, 2, 3) else "2") + "}"
        return f"Write {_EXPECTED[kind]}"

    def _default_in_words(self) -> str:
        field = field_at(self.path, self.data) if self.path else None
        if field is None or field.is_required() or field.default_factory is not None or field.default is None:
            return ""
        return f" for DeepSpeed's default, {json.dumps(field.default)}"


class UnknownKey(Explainer):
    """An error of a key that the models do not have."""

    def mistake(self) -> Mistake:
        path, key = self.path, str(self.path[-1])
        removed = REMOVED_KEYS.get(path)
        if removed is not None:
            feature, hint = removed
            fix: tuple[Edit, ...] = (Remove(path),) if _is_off(self.value) else ()
            message = f"'{key}' is refused by DeepSpeed: {feature} was removed"
            return self.found("removed-key", message, hint, fix=fix)
        first = canonical(path)
        if first != path and as_written(first, self.data) == first:
            same = value_at(self.data, first) == self.value
            fix = (Remove(path),) if same else ()
            message = f"'{key}' and '{first[-1]}' are two names of one key"
            return self.found("duplicate-key", message, "Remove one of them", fix=fix)
        if dotted(path) in _PYTHON_OBJECTS:
            message = f"'{key}' takes an object of Python, which a file cannot hold"
            return self.found("bad-value", message, "Remove it, or give it in the script")
        if path[:-1] in (("optimizer", "params"), ("scheduler", "params")):
            return self._unknown_parameter()
        meaning = meaning_of(path, self.data)
        rule = "misplaced-key" if meaning.kind == "misplaced" else "unknown-key"
        severity: Severity = "error" if meaning.plain or self.reader != "lookup" else "warning"
        message = f"unknown key '{key}'"
        if rule == "misplaced-key":
            where = f"in '{dotted(path[:-1])}'" if path[:-1] else "at the top of the file"
            verb = "does not read" if self.reader == "lookup" else "refuses"
            message = f"DeepSpeed {verb} '{key}' {where}"
            if self.reader == "lookup" and self._is_default_at(meaning.to):
                severity = "warning"
        return self._meant(meaning, rule, message, severity)

    def _unknown_parameter(self) -> Mistake:
        section, _, key = (str(part) for part in self.path)
        type_ = self.data[section]["type"]
        meaning = meaning_of(self.path, self.data)
        severity: Severity = "error" if meaning.plain or self.reader != "lookup" else "warning"
        message = f"{type_} has no parameter '{key}'"
        return self._meant(meaning, "unknown-key", message, severity)

    def _meant(self, meaning: Meaning, rule: str, message: str, severity: Severity) -> Mistake:
        found = self.found(rule, message, self._hint(meaning), severity, self._move(meaning))
        return found._replace(meant=self.path if meaning.foreign else meaning.to)

    def _hint(self, meaning: Meaning) -> str:
        """What to do about the key, given what its value would be where it was meant to be."""
        if meaning.to is None or self.fixer.takes(as_written(meaning.to, self.data), self.value):
            return meaning.hint
        to = dotted(meaning.to)
        if has_value(self.data, as_written(meaning.to, self.data)):
            return f"Remove it: '{to}' is there as well"
        if meaning.kind == "misplaced":
            return f"Remove it: '{to}' takes another value"
        return f"{meaning.hint} It takes another value"

    def _move(self, meaning: Meaning) -> tuple[Edit, ...]:
        path = self.path
        if path[-1] == "fp32_allreduce" and isinstance(self.value, bool):
            new = SetValue(("communication_data_type",), "fp32")
            if self.value and value_at(self.data, new.path, "fp32") != "fp32":
                return ()
            return (Remove(path), new) if self.value else (Remove(path),)
        if path[:1] in (("bf16",), ("bfloat16",)) and meaning.kind == "misplaced" and meaning.to is None:
            return (Remove(path),)
        if meaning.to is None or not meaning.sure:
            return ()
        to = as_written(meaning.to, self.data)
        move = Move(path, (*to[:-1], meaning.to[-1]))
        return (move,) if self.fixer.moves(move) else ()

    def _is_default_at(self, to: KeyPath | None) -> bool:
        """Whether DeepSpeed, which ignores the key here, does what the key requests anyway."""
        if to is None or to[-1] != self.path[-1]:
            return False
        field = field_at(to, self.data)
        if field is None or field.is_required() or type(field.default) is not type(self.value):
            return False
        return bool(field.default == self.value) and not has_value(self.data, as_written(to, self.data))


def _is_off(value: Any) -> bool:
    """Whether a section is switched off, or a key is false."""
    if isinstance(value, dict):
        return value.get("enabled") is False
    return value is None or value is False


def _name(path: KeyPath) -> str:
    """The last key in quotes, with that of the list that it counts in."""
    start = next((at for at in reversed(range(len(path))) if isinstance(path[at], str)), 0)
    return f"'{dotted(path[start:])}'" if path else "the config"
