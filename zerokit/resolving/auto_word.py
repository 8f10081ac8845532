"""The word "auto": where a config has it, and where it need not be filled in.

Who fills it elsewhere is in `filled_keys.py`. DeepSpeed alone drops or misreads it:
`bf16.enabled: "auto"` trains in fp32.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from zerokit.choices import Target
from zerokit.config.base import AUTO, Section, is_comment
from zerokit.config.key_index import canonical, sections
from zerokit.documents import KeyPath, dotted

TARGETS: tuple[Target, ...] = get_args(Target)


def _keys(test: Callable[[type[Section], FieldInfo], object]) -> frozenset[str]:
    return frozenset(
        dotted((*path, name))
        for path, model in sections().items()
        for name, field in model.model_fields.items()
        if test(model, field)
    )


def _takes_text(annotation: Any) -> bool:
    parts = (annotation, *get_args(annotation))
    return any(getattr(part, "__origin__", part) is str for part in parts)


DEEPSPEEDS_OWN_WORD = _keys(lambda model, field: field.default == AUTO)
"""Dotted paths at which DeepSpeed itself knows the word: no gap to be filled."""

FREE_TEXT = _keys(lambda model, field: model.read_by == "lookup" and _takes_text(field.annotation))
"""Dotted paths of names, files and patterns, where "auto" is a text like any other as long as neither the
Trainer nor accelerate reads the config. (In sections that DeepSpeed parses with pydantic it is dropped.)"""


def is_dropped(path: KeyPath) -> bool:
    """Whether DeepSpeed by itself drops an "auto" at a path and uses its default.

    It does so in sections that it parses with pydantic, and takes the word for a value elsewhere.

    Source: deepspeed/runtime/config_utils.py, `DeepSpeedConfigModel.__init__`.
    """
    model = sections().get(canonical(path[:-1]))
    return model is not None and model.read_by == "model"


def autos(data: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """The paths of all values that are exactly "auto", comments left out."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if not is_comment(key):
                yield from autos(value, (*path, key))
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from autos(item, (*path, index))
    elif data == AUTO:
        yield path
