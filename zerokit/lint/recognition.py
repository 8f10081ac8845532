"""Tells a ds_config from other files."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from zerokit.config.base import is_comment
from zerokit.config.key_index import keys_of
from zerokit.config.launch_file import SECTION, is_launch_file, is_local
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.sections import DeepSpeedConfig
from zerokit.config.unknown_keys import INFERENCE_KEYS, meaning_of
from zerokit.documents import Document, KeyPath, dotted
from zerokit.errors import DocumentError
from zerokit.spelling import distance
from zerokit.tables import table_of

_TABLES: Mapping[str, Any] = table_of(__file__)
_TELLING = frozenset[str](_TABLES["ds_config"])
"""Keys that only a ds_config has at its top."""
_SHARED = frozenset[str](_TABLES["shared"])
"""Those that other programs have too, as plain values."""
_TELLING_BYTES = tuple(f'"{key}"'.encode() for key in sorted(_TELLING))

_SLIPS = 2
"""Letters by which a misspelled name may differ."""
_OF_RECIPES, _RECIPE_LEAST = frozenset[str](_TABLES["recipe"]), 2

_OTHERS: Sequence[Mapping[str, Any]] = _TABLES["others"]
"""`keys`, how many of them a file must have at `least`, and what it is then if it has no telling key."""

_OF_INFERENCE_TOO = frozenset({"checkpoint", "tensor_parallel"})
"""Keys at the top of a ds_config that `DeepSpeedInferenceConfig` has as well."""

_NEOX = frozenset[str](_TABLES["neox"])
"""Keys of GPT-NeoX and Megatron, where files may write `_` as `-`, and have DeepSpeed's keys among them."""
_NEOX_LEAST = 4

_WRAPPERS = ("deepspeed", "ds_config", "deepspeed_config", "config")
_DEEPEST = 4
"""Keys on the way to a ds_config inside another file."""

_FOREIGN_LEAST = 3
"""With so many keys, one must be DeepSpeed's, or half may be; a shorter file may be a draft."""
_MOST_LOOKED_AT = 100


def looks_like_ds_config(data: Any) -> bool:
    """Whether `data`, found in a folder, is surely meant as a ds_config."""
    if not isinstance(data, Mapping) or not _is_telling(data):
        return False
    return not is_launch_file(data) and not _is_of_neox(data)


def is_meant(data: Any) -> bool:
    """Whether `data`, found in a folder, is a ds_config, or starts DeepSpeed with ``accelerate launch``."""
    if is_launch_file(data):
        section = data.get(SECTION)
        return is_local(data) and (
            data.get("distributed_type") == "DEEPSPEED" or (isinstance(section, Mapping) and bool(section))
        )
    return looks_like_ds_config(data)


def _is_telling(data: Mapping[Any, Any]) -> bool:
    """Whether the top has a key that only a ds_config has.

    Some names are also arguments of other programs (`bf16: true`, `gradient_accumulation_steps`): beside keys
    of those they tell nothing.
    """
    if _TELLING.isdisjoint(data):
        return False
    shared = (key for key in _SHARED & data.keys() if not isinstance(data[key], Mapping))
    return bool(_TELLING & data.keys() - set(shared)) or _foreign(data) is None


def _foreign(data: Mapping[Any, Any]) -> str | None:
    """What a file is that has enough keys of another program."""
    for other in _OTHERS:
        if len(data.keys() & other["keys"]) >= other["least"]:
            return str(other["what"])
    return None


def _is_of_neox(data: Mapping[Any, Any]) -> bool:
    return len(_NEOX & {str(key).replace("-", "_") for key in data}) >= _NEOX_LEAST


def mentions_ds_config(content: bytes) -> bool:
    """Whether a file that perhaps cannot be parsed has one of the telling keys in quotes."""
    return any(key in content for key in _TELLING_BYTES)


def mentions_launch(content: bytes) -> bool:
    """Whether a file that perhaps cannot be parsed may start DeepSpeed with ``accelerate launch``."""
    return b"distributed_type" in content and (b"DEEPSPEED" in content or SECTION.encode() in content)


def refuse_other_files(document: Document) -> None:
    """Raise if a file is surely something else than a ds_config.

    Raises:
        DocumentError: it is no JSON object, or another known kind of file.
    """
    data = document.data
    if not isinstance(data, Mapping):
        what = {list: "a list", str: "a text", type(None): "empty"}.get(type(data), "a single value")
        raise DocumentError(
            f"is {what}, not a ds_config", where=document.name, hint="A ds_config is one JSON object { ... }"
        )
    if _is_of_neox(data):
        raise DocumentError(
            "is a config of GPT-NeoX, not a ds_config",
            where=document.name,
            hint="Check the ds_config that GPT-NeoX makes from it and gives to DeepSpeed",
        )
    if _is_telling(data):
        return
    recipe = _is_recipe(data)
    inside = None if recipe else _ds_config_inside(data)
    if inside is not None:
        raise DocumentError(
            f"holds a ds_config under the key '{dotted(inside)}', where DeepSpeed does not look for it",
            where=document.where(inside),
            hint=f"Put the content of '{inside[-1]}' into a file of its own",
        )
    if recipe:
        raise DocumentError(
            "is a recipe of zerokit, not a ds_config",
            where=document.name,
            hint=f"'zerokit train --recipe {document.name} --preview 1' checks it, and "
            f"'zerokit resolve --recipe {document.name}' prints its ds_config",
        )
    if (kind := _other(data)) is not None:
        named = data.get("deepspeed")
        hint = f"It names {named}" if isinstance(named, str) else "Give the file that DeepSpeed gets as its config"
        raise DocumentError(f"is {kind}, not a ds_config", where=document.name, hint=hint)


def _is_recipe(data: Mapping[Any, Any]) -> bool:
    """Whether the keys are those of a recipe, but for slips of the pen and one other."""
    if len(_OF_RECIPES & data.keys()) < _RECIPE_LEAST:
        return False
    from zerokit.recipe.model import Recipe

    known = set(Recipe.model_fields)
    return sum(not _is_slip(str(key), known) for key in islice(data.keys() - known, _MOST_LOOKED_AT)) < 2


def _is_slip(name: str, known: Iterable[str]) -> bool:
    near = (key for key in known if abs(len(key) - len(name)) <= _SLIPS)
    return any(distance(name, key) <= _SLIPS for key in near)


def _other(data: Mapping[Any, Any]) -> str | None:
    """What a file without a telling key is, if it is no ds_config."""
    if (foreign := _foreign(data)) is not None:
        return foreign
    of_training = {*keys_of(DeepSpeedConfig)} - _OF_INFERENCE_TOO
    if not INFERENCE_KEYS.isdisjoint(data) and of_training.isdisjoint(data):
        return "a config for inference (deepspeed.init_inference)"
    keys = [str(key) for key in islice(data, _MOST_LOOKED_AT) if not is_comment(key)]
    if len(keys) >= _FOREIGN_LEAST and not _are_meant(keys, data):
        return "a file without any key of DeepSpeed's"
    return None


def _are_meant(keys: Sequence[str], data: Mapping[Any, Any]) -> bool:
    """Whether one key at the top is surely DeepSpeed's, perhaps an old or misspelled one, or half may be.

    Of a file of another program one or two may be by chance, such as `lr`.
    """
    perhaps = 0
    for key in keys:
        meaning = meaning_of((key,), data)
        if key in keys_of(DeepSpeedConfig) or (key,) in REMOVED_KEYS or meaning.sure:
            return True
        perhaps += meaning.kind != "unknown"
    return 2 * perhaps >= len(keys)


def _ds_config_inside(data: Mapping[Any, Any], above: KeyPath = ()) -> KeyPath | None:
    """The path of a ds_config inside another program's settings."""
    for key, value in data.items():
        path = (*above, key)
        if key in _WRAPPERS and looks_like_ds_config(value):
            return path
        if isinstance(value, Mapping) and len(path) < _DEEPEST:
            inside = _ds_config_inside(value, path)
            if inside is not None:
                return inside
    return None
