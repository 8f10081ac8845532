"""What each key means: the text of its field, with its stages and its first release.

The one place that makes these texts; the JSON Schema and ``zerokit explain`` print them.
"""

import inspect
import json
from typing import Any

from zerokit.config.base import ALL_STAGES, Section, in_stages
from zerokit.config.conditions import Acts


def description(model: type[Section], name: str) -> str:
    """The whole description of a key: meaning, unit, default, stages, first release."""
    field = model.model_fields[name]
    parts = [field.description or ""]
    if "efault" not in parts[0] and not field.is_required() and field.default_factory is None:
        parts.append(f"Default {shown(field.default)}.")
    acts = next((item for item in field.metadata if isinstance(item, Acts)), None)
    if acts is not None:
        parts += _in_words(acts)
    return " ".join(part for part in parts if part)


def section_description(model: type[Section]) -> str:
    """The docstring of a section, in one line."""
    return " ".join((inspect.getdoc(model) or "").split())


def shown(value: Any) -> str:
    """A default as a person would write it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,}".replace(",", "_")
    return "none" if value is None else json.dumps(value)


def _in_words(acts: Acts) -> list[str]:
    words = []
    if acts.stages != ALL_STAGES:
        words.append(f"in {in_stages(acts.stages)}")
    if acts.when is not None and acts.when.words:
        words.append(acts.when.words)
    sentences = [f"Acts {' '.join(words)}."] if words else []
    if acts.when is not None and acts.when.words is None:
        sentences.append("DeepSpeed does not use it.")
    if acts.since is not None:
        sentences.append(f"Since DeepSpeed {acts.since}.")
    return sentences
