"""Adds a LoRA adapter of peft's to the model that it was trained on, a block of elements at a time.

Each weight W becomes W + s * B @ A, in float32 and rounded once to the model's type, as peft adds it
(peft/tuners/lora/layer.py, `get_delta_weight`); s is alpha / r, or alpha / sqrt(r) with `use_rslora`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from zerokit import console
from zerokit.checkpoint.adapter_names import ADAPTER_CONFIG
from zerokit.checkpoint.checksums import checksums, write_checksums
from zerokit.checkpoint.elements import BLOCK_ELEMENTS, CONVERTIBLE, ElementReader, converter
from zerokit.checkpoint.model_files import CONFIG, copy_files, model_files, read_config
from zerokit.checkpoint.new_folder import check_output, check_space, clear, new_folder
from zerokit.checkpoint.safetensors_file import read_safetensors, write_safetensors
from zerokit.checkpoint.source import check_checkpoint, resolve_checkpoint, weight_files
from zerokit.documents import is_folder, shown
from zerokit.errors import CheckpointError
from zerokit.files import write_file

if TYPE_CHECKING:
    from zerokit.checkpoint.elements import Block
    from zerokit.checkpoint.tensors import NamedTensor

_ADAPTER_WEIGHTS = "adapter_model.safetensors"
_INDEX = "model.safetensors.index.json"
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?:(?P<embedding>embedding_)?(?P<factor>[AB]))(?:\.weight)?")
_OF_PEFT = "base_model.model."
_READ = frozenset(
    {
        *("peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version"),
        *(
            "auto_mapping",
            "r",
            "lora_alpha",
            "lora_dropout",
            "fan_in_fan_out",
            "use_rslora",
            "init_lora_weights",
        ),
        *("target_modules", "exclude_modules", "modules_to_save", "rank_pattern", "alpha_pattern", "bias"),
        *("layers_to_transform", "layers_pattern", "megatron_core", "runtime_config", "qalora_group_size"),
        *("eva_config", "ensure_weight_tying"),
    }
)
"""Keys of adapter_config.json under which the formula holds; another one that is set is refused."""
_UNCHANGED_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
"""Of `init_lora_weights`: others take something away from the model's own weights."""


@dataclass(frozen=True)
class Merged:
    """What was written."""

    folder: Path
    base: Path
    num_merged: int
    """Weights that were added to."""
    num_replaced: int
    """Weights that the adapter has whole (`modules_to_save`)."""
    nbytes: int


@dataclass(frozen=True)
class _Low:
    """What is added to a weight: ``scale * up @ down``."""

    down: NamedTensor
    """A, of shape (r, in)."""
    up: NamedTensor
    """B, of shape (out, r)."""
    scale: float
    turned: bool
    """Whether the weight has the shape (in, out)."""

    @property
    def shape(self) -> tuple[int, int]:
        shape = self.up.shape[0], self.down.shape[1]
        return shape[::-1] if self.turned else shape


@dataclass(frozen=True)
class _Plan:
    files: Mapping[Path, Mapping[str, NamedTensor]]
    """Of the model, their tensors by name."""
    low: Mapping[str, _Low]
    replaced: Mapping[str, NamedTensor]


def merge(adapter: Path, output: Path, *, base: Path | None = None) -> Merged:
    """Write the model with the adapter in it, and the adapter's tokenizer.

    Args:
        adapter: its folder, with adapter_config.json and adapter_model.safetensors.
        output: a folder that does not exist, or is empty.
        base: the folder of the model; None for the one that the adapter names.

    Raises:
        ZerokitError: the adapter is of another kind, or does not fit the model; the folder cannot be written.
    """
    check_output(output)
    settings = _read_settings(adapter)
    where = shown(adapter / ADAPTER_CONFIG)
    name = str(base or settings.get("base_model_name_or_path") or "")
    if not name:
        _refuse(adapter, "does not say of which model it is", "Name its folder with --base")
    model = resolve_checkpoint(name, where="--base" if base else where)
    config = check_checkpoint(model, where="--base" if base else where).data
    plan = _plan(adapter, settings, model, config)
    tensors = [tensor for of in plan.files.values() for tensor in of.values()]
    needed = sum(tensor.nbytes for tensor in tensors)
    copied = model_files(model, code="auto_map" in config)
    own = model_files(adapter, code=False)
    check_space(output, needed)
    with new_folder(output) as staging, ElementReader() as reader, console.progress() as bar:
        clear(staging)
        task = bar.add_task("merging", total=len(plan.files), note="")
        sums = {}
        for file, found in plan.files.items():
            sums[file.name] = write_safetensors(
                staging / file.name, list(found.values()), lambda tensor: _blocks(reader, plan, tensor)
            )
            bar.advance(task)
        names = [*copy_files(copied, model, staging), *copy_files(own, adapter, staging), CONFIG]
        write_file(staging / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
        if (model / _INDEX).is_file():
            names += copy_files([model / _INDEX], model, staging)
        write_checksums(staging, sums | checksums(staging, dict.fromkeys(names)))
    return Merged(output, model, len(plan.low), len(plan.replaced), needed)


def _read_settings(adapter: Path) -> dict[str, Any]:
    if not is_folder(adapter) or not (adapter / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"has no {ADAPTER_CONFIG}" if is_folder(adapter) else "no such folder",
            where=shown(adapter),
            hint="Name the folder of an adapter; of a checkpoint 'zerokit checkpoint export' makes one",
        )
    settings = read_config(adapter / ADAPTER_CONFIG)
    kind = settings.get("peft_type")
    if kind != "LORA":
        _refuse(adapter, f"is of the kind {kind}", "Merge it with peft: merge_and_unload()")
    bias = settings.get("bias", "none")
    other = next((key for key, value in settings.items() if value and key not in _READ), None)
    if bias != "none":
        other = "bias"
    if settings.get("init_lora_weights", True) not in _UNCHANGED_BASE:
        other = "init_lora_weights"
    if other is not None:
        _refuse(
            adapter,
            f"has {other}: {json.dumps(settings[other])[:40]}, which is more than B @ A beside a weight",
            "Merge it with peft: merge_and_unload()",
        )
    return settings


def _plan(adapter: Path, settings: Mapping[str, Any], model: Path, config: Mapping[str, Any]) -> _Plan:
    files = {file: read_safetensors(file) for file in weight_files(model, where=shown(model))}
    weights = {name: tensor for found in files.values() for name, tensor in found.items()}
    factors: dict[str, dict[str, NamedTensor]] = {}
    replaced = {}
    turned = {}
    for name, tensor in read_safetensors(adapter / _ADAPTER_WEIGHTS).items():
        inside = name.removeprefix(_OF_PEFT)
        found = _FACTOR.fullmatch(inside)
        if tensor.dtype not in CONVERTIBLE:
            _refuse(adapter, f"has '{name}' of {tensor.dtype}", "Save it again in a floating-point type")
        if found is None:
            # peft keeps embeddings beside what it adds to them.
            replaced[_in_model(adapter, inside.replace(".base_layer.", "."), weights)] = tensor
            continue
        module = found["module"]
        factors.setdefault(module, {})[found["factor"]] = tensor
        turned[module] = bool(found["embedding"] or settings.get("fan_in_fan_out"))
    low = {}
    for module, pair in factors.items():
        if pair.keys() != {"A", "B"} or any(len(one.shape) != 2 for one in pair.values()):
            _refuse(
                adapter, f"has no pair of matrices for '{module}'", "Merge it with peft: merge_and_unload()"
            )
        scale = _scale(adapter, settings, module, pair["A"].shape[0])
        low[_in_model(adapter, f"{module}.weight", weights)] = _Low(
            pair["A"], pair["B"], scale, turned[module]
        )
    shapes: list[tuple[str, tuple[int, ...]]] = [(name, one.shape) for name, one in low.items()]
    shapes += [(name, one.shape) for name, one in replaced.items()]
    for name, shape in shapes:
        if shape != weights[name].shape or weights[name].dtype not in CONVERTIBLE:
            has = f"{list(weights[name].shape)} of {weights[name].dtype}"
            _refuse(
                adapter, f"has {list(shape)} for '{name}', which is {has} in {shown(model)}", _ANOTHER_MODEL
            )
    if not low and not replaced:
        _refuse(adapter, "has no weights", "Save it again")
    _check_tied(adapter, replaced.keys() - low.keys(), weights, config)
    return _Plan(files, low, replaced)


_ANOTHER_MODEL = "Name the model that it was trained on with --base"


def _in_model(adapter: Path, name: str, weights: Mapping[str, Any]) -> str:
    """The name of a weight in the model's files, which may leave out the first part, as transformers does."""
    for known in (name, name.partition(".")[2]):
        if known in weights:
            return known
    _refuse(adapter, f"has '{name}', which the model's files have not, or tied to another", _ANOTHER_MODEL)


def _scale(adapter: Path, settings: Mapping[str, Any], module: str, rank: int) -> float:
    """As `update_layer` of peft's LoraLayer has it."""
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


def _check_tied(
    adapter: Path,
    replaced: Set[str],
    weights: Mapping[str, NamedTensor],
    config: Mapping[str, Any],
) -> None:
    """Refuse one of two tied weights that the adapter has whole: the model would take it for both."""
    vocab = {name for name, one in weights.items() if one.shape[:1] == (config.get("vocab_size"),)}
    of_both = vocab & replaced
    if of_both and len(vocab) == 1 and config.get("tie_word_embeddings", True):
        _refuse(
            adapter,
            f"has '{of_both.pop()}' whole (modules_to_save), which the model ties to another weight",
            "Set tie_word_embeddings to false in the model, save it with both, and name it with --base",
        )


def _blocks(reader: ElementReader, plan: _Plan, target: NamedTensor) -> Iterator[Block]:
    low, source = plan.low.get(target.name), plan.replaced.get(target.name, target)
    if low is None:
        yield from map(converter(source.dtype, target.dtype), reader.blocks(source))
        return
    import numpy as np

    down, up = (_matrix(reader, one) for one in (low.down, low.up))
    left, right = (down.T, up.T) if low.turned else (up, down)
    rows, columns = target.shape
    widen, narrow = converter(source.dtype, "float32"), converter("float32", target.dtype)
    step = max(1, BLOCK_ELEMENTS // columns)
    for begin in range(0, rows, step):
        end = min(begin + step, rows)
        (block,) = map(widen, reader.blocks(source.cut(begin * columns, end * columns)))
        added = (left[begin:end] @ right) * np.float32(low.scale)
        merged = block.view(np.float32).reshape(end - begin, columns) + added
        yield narrow(np.ascontiguousarray(merged).view(np.uint8).reshape(-1))


def _matrix(reader: ElementReader, tensor: NamedTensor) -> Any:
    """In float32."""
    import numpy as np

    widen = converter(tensor.dtype, "float32")
    parts = [widen(block).view(np.float32).copy() for block in reader.blocks(tensor)]
    return np.concatenate([np.empty(0, np.float32), *parts]).reshape(tensor.shape)


def _refuse(adapter: Path, problem: str, hint: str) -> NoReturn:
    raise CheckpointError(problem, where=shown(adapter), hint=hint)
