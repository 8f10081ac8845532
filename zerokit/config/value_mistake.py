"""What is said of a value that the models refuse, and what is right in its place."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from zerokit.config.base import AUTO, Tested
from zerokit.config.batch_sizes import MICRO, STEPS, TRAIN
from zerokit.config.key_index import canonical, section_at
from zerokit.config.mistakes import Explainer, Mistake
from zerokit.config.repairs import FALSE_WORDS, TRUE_WORDS, choices_at, deepspeed_reads_as
from zerokit.documents import KeyPath
from zerokit.errors import nearest
from zerokit.findings import Remove, SetValue, Severity

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "list_type": "a list [...]",
    "dict_type": "a section {...}",
    "model_type": "a section {...}",
    "model_attributes_type": "a section {...}",
    "null": "a section {...}",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}

_DROPS_AUTO: tuple[KeyPath, ...] = (
    ("zero_optimization",),
    ("zero_optimization", "offload_optimizer"),
    ("zero_optimization", "offload_param"),
)
"""Sections in which DeepSpeed takes the word "auto" for an absent key, whatever the key."""


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
        edit = self.mender.value_for(self.path, self.value)
        if edit is None and "meant" in self.context:
            edit = SetValue(self.path, self.context["meant"])
        if edit is None:  # What cannot be put right, DeepSpeed cannot read well.
            return self.found(rule, message, hint)
        hint = "Remove the key" if isinstance(edit, Remove) else f"Write {_show(edit.value, quoted=False)}"
        return self.found(rule, message, hint, severity, (edit,), edit)

    def _words(self) -> _Words:
        kind, value, name = self.kind, self.value, self.name
        if value == AUTO:
            hint = f"Write a value, or remove the key{self._default_in_words()}"
            effect: Severity = "warning" if self._is_dropped_in_silence() else "error"
            return _Words("unfilled-auto", f'{name} is "auto", which nobody fills in here', hint, effect)
        if kind == "bool_type" and isinstance(value, str) and self.reader != "model" and not self._tested():
            return self._string_switch()
        if kind in _EXPECTED:
            severity: Severity = "warning" if self._is_read_well() else "error"
            message = f"{name} must be {_EXPECTED[kind]}, not {_show(value)}"
            return _Words("wrong-type", message, self._hint_for_type(), severity)
        if kind in _BOUNDS:
            words, key = _BOUNDS[kind]
            bound = f"{words} {self.context[key]:g}"
            message = f"{name} must be {bound}, not {_show(value)}"
            return _Words("out-of-range", message, f"Write a number of {bound}")
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
            message = (
                f"{self.name} is {_show(self.value)}, which DeepSpeed takes for true as it does any text"
            )
            return _Words("string-switch", message, "Write true", "warning")
        if text in FALSE_WORDS:
            message = f"{self.name} is {_show(self.value)}, which DeepSpeed takes for true: any text is"
            return _Words("string-switch", message, "Write false")
        message = f"{self.name} must be true or false, not {_show(self.value)}"
        return _Words("string-switch", message, "Write true or false")

    def _is_read_well(self) -> bool:
        """Whether DeepSpeed, less strict than zerokit, takes the value for what it plainly says."""
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
        first = canonical(self.path)
        model = section_at(first[:-1], self.data)
        field = model.model_fields.get(str(first[-1])) if model else None
        return [item for item in field.metadata if isinstance(item, Tested)] if field else []

    def _not_a_choice(self) -> _Words:
        value, path = self.value, self.path
        choices = choices_at(path, self.data)
        if not choices:
            hint = "Write a name without dots" if self.kind == "string_pattern_mismatch" else "Write a name"
            return _Words("bad-value", f"{self.name} cannot be {_show(value)}", hint)
        listed = ", ".join(json.dumps(choice) for choice in choices)
        one_of = f"one of {listed}" if len(choices) > 1 else listed
        message = f"{self.name} must be {one_of}, not {_show(value)}"
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
            return f"Write {_EXPECTED[kind]}" + (
                "" if required else f", or remove the key{self._default_in_words()}"
            )
        if kind == "int_type" and isinstance(value, float) and abs(value) >= 2**63:
            return "Write a smaller whole number"
        if kind in ("model_type", "dict_type") and path == ("zero_optimization",):
            return 'Write {"stage": ' + (str(value) if value in (0, 1, 2, 3) else "2") + "}"
        return f"Write {_EXPECTED[kind]}"

    def _default_in_words(self) -> str:
        model = section_at(self.path[:-1], self.data) if self.path else None
        first = canonical(self.path)
        field = model.model_fields.get(str(first[-1])) if model else None
        if field is None or field.is_required() or field.default_factory is not None or field.default is None:
            return ""
        return f" for DeepSpeed's default, {json.dumps(field.default)}"


def _show(value: Any, *, quoted: bool = True) -> str:
    if isinstance(value, float) and value - value != 0:
        return str(value)
    text = json.dumps(value, default=str)
    text = text if len(text) <= 40 else f"{text[:36]}..."
    return f"the string {text}" if isinstance(value, str) and quoted else text
