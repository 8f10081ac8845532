"""What is said of a key that DeepSpeed does not read: what it was meant to be, and where it belongs."""

from __future__ import annotations

from typing import Any

from zerokit.config.key_index import as_written, canonical, section_at
from zerokit.config.mistakes import Explainer, Mistake
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.unknown_keys import Meaning, meaning_of
from zerokit.documents import KeyPath, dotted, has_value, value_at
from zerokit.findings import Edit, Move, Remove, SetValue, Severity

_PYTHON_OBJECTS = ("tensor_parallel.dtype", "tensor_parallel.tp.mpu", "tensor_parallel.tp.tp_group")
"""Keys of DeepSpeed's that only a script can give, since they take objects of Python."""


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
        if meaning.to is None or self.mender.takes(as_written(meaning.to, self.data), self.value):
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
            return (Remove(path), new) if self.value else (Remove(path),)
        if path[:1] in (("bf16",), ("bfloat16",)) and meaning.kind == "misplaced" and meaning.to is None:
            return (Remove(path),)
        if meaning.to is None or not meaning.sure:
            return ()
        to = as_written(meaning.to, self.data)
        move = Move(path, (*to[:-1], meaning.to[-1]))
        return (move,) if self.mender.moves(move) else ()

    def _is_default_at(self, to: KeyPath | None) -> bool:
        """Whether DeepSpeed, which ignores the key here, does what it says all the same."""
        if to is None or to[-1] != self.path[-1]:
            return False
        model = section_at(to[:-1], self.data)
        field = model.model_fields.get(str(to[-1])) if model is not None else None
        if field is None or field.is_required() or type(field.default) is not type(self.value):
            return False
        section: Any = self.data
        for key in as_written(to[:-1], self.data):
            section = section.get(key) if isinstance(section, dict) else None
        given = isinstance(section, dict) and to[-1] in section
        return bool(field.default == self.value) and not given


def _is_off(value: Any) -> bool:
    """Whether a section is switched off, or a key says no."""
    if isinstance(value, dict):
        return value.get("enabled") is False
    return value is None or value is False
