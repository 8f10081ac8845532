"""Merges a LoRA, DoRA or IA3 adapter of peft into its model, block by block."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from zerokit import console
from zerokit.checkpoint.adapter_deltas import Ia3Scaling, LoraDelta, apply_delta
from zerokit.checkpoint.adapter_names import ADAPTER_CONFIG, LEARNED_TOKENS, WITH_PEFT
from zerokit.checkpoint.checksums import checksums, write_checksums
from zerokit.checkpoint.element_reader import CONVERTIBLE, Block, ElementReader, converter, is_equal
from zerokit.checkpoint.model_files import CONFIG, copy_files, model_files, read_config
from zerokit.checkpoint.output_folder import check_output, check_space, output_folder
from zerokit.checkpoint.safetensors_file import read_safetensors, write_safetensors
from zerokit.checkpoint.source import (
    WEIGHTS_INDEX,
    check_checkpoint,
    check_files,
    check_weights,
    resolve_checkpoint,
    weight_files,
)
from zerokit.checkpoint.tensors import NamedTensor
from zerokit.documents import is_folder
from zerokit.errors import CheckpointError, printable
from zerokit.files import json_text, write_file
from zerokit.staging import clear
from zerokit.tables import table_of

_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PART = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<embedding>embedding_)?)?(?P<part>(?<=lora_|ding_)[AB]|magnitude_vector|ia3_l)"
    r"(?:\.weight)?"
)
_OF_PEFT = "base_model.model."
_SUPPORTED_KEYS = frozenset[str](table_of(__file__)["supported_keys"])
"""Keys of adapter_config.json that merging supports. Merging refuses other keys that are set."""
_UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the model's own weights unchanged."""


@dataclass(frozen=True)
class Merged:
    folder: Path
    base: Path
    num_merged: int
    """Weights that the adapter changed."""
    num_replaced: int
    """Weights that the adapter replaced (`modules_to_save`)."""
    nbytes: int


@dataclass(frozen=True)
class _Plan:
    files: Mapping[Path, Mapping[str, NamedTensor]]
    """Tensors of the model by file and name."""
    changed: Mapping[str, LoraDelta | Ia3Scaling]
    replaced: Mapping[str, NamedTensor]


def merge(adapter: Path, output: Path, *, base: Path | None = None) -> Merged:
    """Write the model with the adapter merged, and the adapter's tokenizer.

    Args:
        adapter: a folder with adapter_config.json and adapter_model.safetensors.
        base: the folder of the model; None: the model that the adapter names.

    Raises:
        ZerokitError: the adapter is unsupported or does not fit the model, or the folder cannot be written.
    """
    settings = _read_settings(adapter)
    check_files(adapter, where=printable(adapter))
    check_weights(adapter, where=printable(adapter))
    check_output(output)
    where = printable(adapter / ADAPTER_CONFIG)
    own = _text(adapter, settings, "base_model_name_or_path")
    name = str(base or own)
    if not name:
        _refuse(adapter, "does not name its model", "Name its folder with --base")
    # The adapter's revision belongs to the model that it names.
    revision = _text(adapter, settings, "revision") if name == own else ""
    model = resolve_checkpoint(name, where="--base" if base else where, revision=revision or None)
    config = check_checkpoint(model, where="--base" if base else where).data
    plan = _plan(adapter, settings, model, config)
    tensors = [tensor for of in plan.files.values() for tensor in of.values()]
    needed = sum(tensor.nbytes for tensor in tensors)
    copied = model_files(model, code="auto_map" in config)
    copied_from_adapter = model_files(adapter, code=False)
    check_space(output, needed)
    with output_folder(output) as staging, ElementReader() as reader, console.progress() as bar:
        clear(staging)
        task = bar.add_task("merging", total=len(plan.files), note="")
        sums = {}
        for file, found in plan.files.items():
            shard = file.relative_to(model)
            (staging / shard).parent.mkdir(parents=True, exist_ok=True)
            sums[shard.as_posix()] = write_safetensors(
                staging / shard, list(found.values()), lambda tensor: _blocks(reader, plan, tensor)
            )
            bar.advance(task)
        names = [*copy_files(copied, model, staging), *copy_files(copied_from_adapter, adapter, staging), CONFIG]
        write_file(staging / CONFIG, json_text(config))
        if (model / WEIGHTS_INDEX).is_file():
            names += copy_files([model / WEIGHTS_INDEX], model, staging)
        write_checksums(staging, sums | checksums(staging, dict.fromkeys(names)))
    return Merged(output, model, len(plan.changed), len(plan.replaced), needed)


def _read_settings(adapter: Path) -> dict[str, Any]:
    if not is_folder(adapter) or not (adapter / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"has no {ADAPTER_CONFIG}" if is_folder(adapter) else "no such folder",
            where=adapter,
            hint="Name the folder of an adapter; 'zerokit checkpoint export' makes one from a checkpoint",
        )
    settings = read_config(adapter / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    if kind in LEARNED_TOKENS:
        _refuse(adapter, f"has learned tokens ({kind}), which cannot be merged into weights", WITH_PEFT)
    if kind not in ("LORA", "IA3"):
        _refuse(adapter, f"is of the unsupported kind {kind}", "Merge it with peft: merge_and_unload()")
    bias = settings.get("bias", "none")
    other = next((key for key, value in settings.items() if value and key not in _SUPPORTED_KEYS), None)
    if bias != "none":
        other = "bias"
    if settings.get("init_lora_weights", True) not in _UNCHANGED_BASE:
        other = "init_lora_weights"
    if other is not None:
        _refuse(
            adapter,
            f"has {other}: {json.dumps(settings[other])[:40]}, which zerokit does not merge",
            "Merge it with peft: merge_and_unload()",
        )
    return settings


def _text(adapter: Path, settings: Mapping[str, Any], key: str) -> str:
    """A string of adapter_config.json; empty if it is absent or null."""
    value = settings.get(key)
    if value is not None and not isinstance(value, str):
        _refuse(adapter, f"has {key}: {json.dumps(value)[:40]}, which is no string", "Save it again")
    return value or ""


def _plan(adapter: Path, settings: Mapping[str, Any], model: Path, config: dict[str, Any]) -> _Plan:
    """What changes; `config` gets what the merged model needs."""
    files = {file: read_safetensors(file) for file in weight_files(model, where=printable(model))}
    weights = {name: tensor for found in files.values() for name, tensor in found.items()}
    parts: dict[str, dict[str, NamedTensor]] = {}
    replaced = {}
    embeddings = set()
    tied = _tied_weights(weights, config)
    for name, tensor in read_safetensors(adapter / _ADAPTER_WEIGHTS).items():
        inside = name.removeprefix(_OF_PEFT)
        found = _PART.fullmatch(inside)
        if tensor.dtype not in CONVERTIBLE:
            _refuse(adapter, f"has '{name}' of {tensor.dtype}", "Save it again in a floating-point type")
        if found is None:
            # peft saves embeddings together with their adapters.
            replaced[_name_in_model(adapter, inside.replace(".base_layer.", "."), weights, tied)] = tensor
            continue
        parts.setdefault(found["module"], {})[found["part"]] = tensor
        if found["embedding"]:
            embeddings.add(found["module"])
    changes: dict[str, LoraDelta | Ia3Scaling] = {}
    for module, own in parts.items():
        name = _name_in_model(adapter, f"{module}.weight", weights, tied)
        transposed = module in embeddings or bool(settings.get("fan_in_fan_out"))
        if "ia3_l" in own:
            changes |= _ia3_changes(own["ia3_l"], name, weights, transposed=transposed)
        else:
            is_embedding = module in embeddings
            changes[name] = _lora_delta(adapter, settings, module, own, transposed=transposed, embedding=is_embedding)
    _check_shapes(adapter, changes, replaced, weights, model)
    whole = replaced.keys() - changes.keys()
    if len(tied) == 1 and whole & {*tied}:
        _refuse(
            adapter,
            f"has '{tied[0]}' whole (modules_to_save), which the model ties to another weight",
            "Set tie_word_embeddings to false in the model, save it with both, and name it with --base",
        )
    for name, other in (tied, tied[::-1]) if len(tied) == 2 else ():
        if name in whole:
            config["tie_word_embeddings"] = False
        elif name in changes:  # the change is to the weight that both are
            changes.setdefault(other, changes[name])
            replaced |= {other: replaced[name]} if name in replaced else {}
    return _Plan(files, changes, replaced)


def _lora_delta(
    adapter: Path,
    settings: Mapping[str, Any],
    module: str,
    parts: Mapping[str, NamedTensor],
    *,
    transposed: bool,
    embedding: bool,
) -> LoraDelta:
    magnitudes = parts.get("magnitude_vector")
    pair = [parts[name] for name in ("A", "B") if name in parts]
    if len(pair) != 2 or any(len(one.shape) != 2 for one in pair):
        _refuse(adapter, f"has no pair of matrices for '{module}'", "Merge it with peft: merge_and_unload()")
    down, up = pair
    if magnitudes is not None and (embedding or magnitudes.numel != up.shape[0]):
        _refuse(adapter, f"has DoRA on '{module}'", "Merge it with peft: merge_and_unload()")
    return LoraDelta(down, up, _scale(adapter, settings, module, down.shape[0]), transposed, magnitudes)


def _ia3_changes(
    by: NamedTensor, name: str, weights: Mapping[str, NamedTensor], *, transposed: bool
) -> Iterator[tuple[str, Ia3Scaling]]:
    """A factor of outputs, (out, 1), which includes the bias; or of inputs, (1, in)."""
    of_outputs = len(by.shape) == 2 and by.shape[1] == 1
    shape = weights[name].shape
    length = shape[1 if transposed == of_outputs else 0] if len(shape) == 2 else 0
    yield name, Ia3Scaling(by, shape if by.numel == length else by.shape, by_row=transposed != of_outputs)
    bias = f"{name.removesuffix('weight')}bias"
    if of_outputs and bias in weights:
        yield bias, Ia3Scaling(by, (by.numel,), by_row=True)


def _check_shapes(
    adapter: Path,
    changes: Mapping[str, LoraDelta | Ia3Scaling],
    replaced: Mapping[str, NamedTensor],
    weights: Mapping[str, NamedTensor],
    model: Path,
) -> None:
    shapes = [(name, one.shape) for name, one in (*changes.items(), *replaced.items())]
    for name, shape in shapes:
        if shape != weights[name].shape or weights[name].dtype not in CONVERTIBLE:
            has = f"{list(weights[name].shape)} of {weights[name].dtype}"
            _refuse(adapter, f"has {list(shape)} for '{name}', which is {has} in {printable(model)}", _ANOTHER_MODEL)
    if not shapes:
        _refuse(adapter, "has no weights", "Save it again")


_ANOTHER_MODEL = "Name the model that it was trained on with --base"


def _name_in_model(adapter: Path, name: str, weights: Mapping[str, Any], tied: Sequence[str]) -> str:
    """The name of a weight in the model's files; transformers may leave out the first part."""
    for known in (name, name.partition(".")[2]):
        if known in weights:
            return known
    if len(tied) == 1 and name.endswith(_EMBEDDINGS):
        return tied[0]
    _refuse(adapter, f"has '{name}', which the model's files lack, or tie to another weight", _ANOTHER_MODEL)


_EMBEDDINGS = ("embed_tokens.weight", "lm_head.weight", "wte.weight", "embed_in.weight", "embed_out.weight")
"""Ends of the names of weights that models tie."""


def _scale(adapter: Path, settings: Mapping[str, Any], module: str, rank: int) -> float:
    """The scale, as in `update_layer` of peft's LoraLayer."""
    alpha = settings.get("lora_alpha", 8)
    for pattern, value in (settings.get("alpha_pattern") or {}).items():
        try:
            if re.fullmatch(rf"(.*\.)?({pattern})", module):
                alpha = value
                break
        except re.error:
            _refuse(adapter, f"has a malformed alpha_pattern '{pattern}'", "Save it again")
    if not isinstance(alpha, int | float) or not rank:
        _refuse(adapter, f"has lora_alpha {alpha!r} and rank {rank}", "Save it again")
    return float(alpha / math.sqrt(rank) if settings.get("use_rslora") else alpha / rank)


def _tied_weights(weights: Mapping[str, NamedTensor], config: Mapping[str, Any]) -> list[str]:
    """The one weight that is both embeddings, or both if the files have it twice; empty if they are not tied.

    transformers ties two weights of a file only if they are equal (`tie_weights` of modeling_utils.py).
    """
    size = config.get("vocab_size")
    found = [name for name, one in weights.items() if len(one.shape) == 2 and one.shape[0] == size]
    if not config.get("tie_word_embeddings", True) or len(found) > 2:
        return []
    return found if len(found) < 2 or is_equal(*(weights[name] for name in found)) else []


def _blocks(reader: ElementReader, plan: _Plan, target: NamedTensor) -> Iterator[Block]:
    change, source = plan.changed.get(target.name), plan.replaced.get(target.name, target)
    if change is not None:
        return apply_delta(reader, change, source, target.dtype)
    return map(converter(source.dtype, target.dtype), reader.blocks(source))


def _refuse(adapter: Path, problem: str, hint: str) -> NoReturn:
    raise CheckpointError(problem, where=adapter, hint=hint)
