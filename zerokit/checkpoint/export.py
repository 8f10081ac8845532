"""Exports a checkpoint as a model folder, block by block."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerokit import choices, console
from zerokit.checkpoint.adapter_names import ADAPTER_CONFIG, adapter_names, is_adapted
from zerokit.checkpoint.checksums import SUMS_FILE, checksums, read_checksums, write_checksums
from zerokit.checkpoint.deepspeed_folder import DeepSpeedCheckpoint, read_checkpoint
from zerokit.checkpoint.element_reader import CONVERTIBLE, Block, ElementReader, converter
from zerokit.checkpoint.model_files import CONFIG, copy_files, find_file, model_files, read_config
from zerokit.checkpoint.output_folder import check_output, check_space, output_folder
from zerokit.checkpoint.safetensors_file import write_safetensors
from zerokit.checkpoint.tensor_checks import TensorIssues, checked_blocks
from zerokit.checkpoint.tensors import NamedTensor
from zerokit.documents import is_folder
from zerokit.errors import CheckpointError, ZerokitError, printable
from zerokit.files import is_own_file, json_text, write_file
from zerokit.staging import clear
from zerokit.units import quantity

SHARD_BYTES = 5 * 10**9
"""Shard size of `save_pretrained`."""
_DTYPES: Mapping[choices.Precision, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_PLAN = "export.json"
"""In an unfinished folder: what will be written."""


@dataclass(frozen=True)
class Exported:
    folder: Path
    files: Sequence[str]
    num_tensors: int
    nbytes: int
    dtypes: Sequence[str]
    kept: int
    """Weight files that an earlier, interrupted export wrote."""
    config: Path | None
    """The config that was copied."""
    notes: Sequence[str]


@dataclass(frozen=True)
class _Plan:
    checkpoint: DeepSpeedCheckpoint
    sources: Mapping[str, NamedTensor]
    """Each tensor by its new name."""
    targets: Mapping[str, NamedTensor]
    """Each tensor in its new type."""
    shards: Mapping[str, Sequence[str]]
    """Tensor names by file."""
    config: Path | None
    """Config of the model or adapter."""
    files: Sequence[Path]
    """Files to copy with the config."""
    notes: list[str] = field(default_factory=list)


def export(
    path: Path,
    output: Path,
    *,
    dtype: choices.Precision | None = None,
    base: Path | None = None,
    needs_config: bool = True,
    verify: bool = True,
) -> Exported:
    """Write the model of a checkpoint as a folder that `from_pretrained` loads.

    Files are written to a staging folder beside `output`. An interrupted export continues.

    Args:
        path: a checkpoint, or a run for its newest checkpoint.
        output: a folder that does not exist or is empty.
        dtype: of all floating-point tensors; None: the types of the model.
        base: the folder of the trained model, for its config and tokenizer.
        needs_config: refuse to write weights without a config.
        verify: check that files are unchanged and of one step.

    Raises:
        ZerokitError: the checkpoint is unusable, there is no config, or the folder cannot be written.
    """
    checkpoint = read_checkpoint(path)
    check_output(output)
    if base is not None and not is_folder(base):
        raise CheckpointError("no such folder", where=base, hint="Name the model that was trained")
    plan = _plan(checkpoint, dtype, base, needs_config=needs_config)
    with output_folder(output) as staging:
        sums = _resume(staging, plan)
        kept = len(sums)
        left = [name for file, names in plan.shards.items() if file not in sums for name in names]
        check_space(output, sum(plan.targets[name].nbytes for name in left))
        _write_weights(staging, plan, sums, verify=verify)
        names = _write_rest(staging, plan)
        (staging / _PLAN).unlink()
        sums |= checksums(staging, names)
        write_checksums(staging, sums)
        _check_complete(output, staging, sums)
    return Exported(
        output,
        sorted(sums),
        len(plan.targets),
        sum(tensor.nbytes for tensor in plan.targets.values()),
        sorted({tensor.dtype for tensor in plan.targets.values()}),
        kept,
        plan.config,
        plan.notes,
    )


def _plan(
    checkpoint: DeepSpeedCheckpoint, dtype: choices.Precision | None, base: Path | None, *, needs_config: bool
) -> _Plan:
    found = checkpoint.tensors()
    step = checkpoint.facts.folder
    adapted = is_adapted(found)
    what = "a folder with it" if adapted else "the model that was trained"
    config_name = ADAPTER_CONFIG if adapted else CONFIG
    config = find_file(step, base, config_name)
    if config is None and (needs_config or adapted):
        without = "" if adapted else ", or write the weights alone with --no-config"
        raise CheckpointError(
            f"there is no {config_name} in {'it' if base is not None else 'the folder of the run'}",
            where=base or step,
            hint=f"Name {what} with --base{without}",
        )
    if not adapted and config is not None and "model_type" not in read_config(config):
        if needs_config:
            raise CheckpointError(
                "has no 'model_type', which a model's config needs",
                where=config,
                hint=f"Name {what} with --base, or write the weights alone with --no-config",
            )
        config = None
    if adapted and config is not None:
        names = adapter_names(found, read_config(config), where=printable(step))
        sources = {new: found[name] for name, new in names.items()}
    else:
        tied = _tied_by_content(found, config)
        sources = {name: tensor for name, tensor in found.items() if name not in tied}
    if not sources:
        raise CheckpointError("has no weights of a model", where=step, hint="Use another checkpoint")
    targets = {}
    for name, tensor in sources.items():
        wanted = _DTYPES[dtype] if dtype else checkpoint.dtype_of(tensor.name) or tensor.dtype
        is_converted = tensor.dtype in CONVERTIBLE and wanted in CONVERTIBLE
        targets[name] = replace(tensor, name=name, dtype=wanted if is_converted else tensor.dtype)
    stem = "adapter_model" if adapted else "model"
    files = [] if config is None else model_files(config.parent, code="auto_map" in read_config(config))
    plan = _Plan(checkpoint, sources, targets, _shards(targets, stem), config, files)
    if checkpoint.facts.pipeline_stages is not None:
        plan.notes.append(
            f"names are those of the pipeline's layers, such as '{next(iter(targets))}': a model of another "
            "class has other names"
        )
    widened = [name for name, tensor in targets.items() if sources[name].nbytes < tensor.nbytes]
    if widened:
        some = f"{quantity(len(widened), 'tensor')}, such as '{widened[0]}'"
        why = "saved in 16 bits only"
        if checkpoint.has_nameless_masters:
            why = "saved in 16 bits, beside float32 weights of the optimizer that have no names"
        plan.notes.append(f"{why}, and widened: {some}")
    return plan


def _tied_by_content(found: Mapping[str, NamedTensor], config: Path | None) -> set[str]:
    """Without ZeRO, DeepSpeed does not save which weights are tied: equal weights of the vocabulary."""
    settings = read_config(config) if config is not None else {}
    vocab_size = settings.get("vocab_size")
    seen: dict[Any, str] = {}
    tied = set()
    for name, tensor in found.items() if settings.get("tie_word_embeddings", True) and vocab_size else ():
        is_of_vocabulary = tensor.shape[:1] == (vocab_size,)
        storages = [piece.storage for piece in tensor.pieces] if is_of_vocabulary else []
        is_whole = [one.nbytes for one in storages] == [tensor.nbytes] and storages[0].crc is not None
        content = (tensor.shape, tensor.dtype, storages[0].crc) if is_whole else name
        if is_of_vocabulary and seen.setdefault(content, name) != name:
            tied.add(name)
    return tied


def _shards(targets: Mapping[str, NamedTensor], stem: str) -> dict[str, list[str]]:
    shards: list[list[str]] = [[]]
    room = SHARD_BYTES
    for name, tensor in targets.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(name)
        room -= tensor.nbytes
    if len(shards) == 1 or stem != "model":  # peft reads one file
        return {f"{stem}.safetensors": [name for shard in shards for name in shard]}
    return {
        f"{stem}-{number:05}-of-{len(shards):05}.safetensors": names for number, names in enumerate(shards, start=1)
    }


def _resume(staging: Path, plan: _Plan) -> dict[str, str]:
    """Make the folder, or return the SHA-256 of the files that an earlier export wrote."""
    stats = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in plan.checkpoint.files]
    shards = {file: [(plan.targets[name].dtype, name) for name in names] for file, names in plan.shards.items()}
    text = json.dumps({"files": stats, "shards": shards})
    file = staging / _PLAN
    kept = {}
    are_own = all(is_own_file(one) for one in (file, staging / SUMS_FILE))
    if are_own and file.read_text(encoding="utf-8") == text:
        sums = read_checksums(staging) or {}
        whole = {name for name in sums if name in plan.shards and is_own_file(staging / name)}
        kept = {name: sums[name] for name in whole if checksums(staging, [name])[name] == sums[name]}
    clear(staging, kept=kept)
    write_file(file, text)
    write_checksums(staging, kept)
    return kept


def _write_weights(staging: Path, plan: _Plan, sums: dict[str, str], *, verify: bool) -> None:
    remarks = TensorIssues()
    with ElementReader() as reader, console.progress() as bar:
        task = bar.add_task("exporting", total=len(plan.shards), completed=len(sums), note="")

        def blocks(target: NamedTensor) -> Iterator[Block]:
            source = plan.sources[target.name]
            convert = converter(source.dtype, target.dtype)
            read = checked_blocks(reader, plan.checkpoint, source, remarks) if verify else reader.blocks(source)
            return map(convert, read)

        for file, names in plan.shards.items():
            if file in sums:
                for piece in (piece for name in names for piece in plan.sources[name].pieces):
                    reader.check(piece.storage)
            else:
                sums[file] = write_safetensors(staging / file, [plan.targets[name] for name in names], blocks)
                write_checksums(staging, sums)
                bar.advance(task)
        if verify:
            reader.finish()
    for names, what in (
        (remarks.not_finite, "infinite or NaN elements"),
        (remarks.differing, "different on some ranks; exported from rank 0"),
    ):
        if names:
            plan.notes.append(f"{what}: {quantity(len(names), 'tensor')}, such as '{names[0]}'")


def _write_rest(staging: Path, plan: _Plan) -> list[str]:
    """Write the index, the config and its files; return their names."""
    names = []
    if len(plan.shards) > 1:
        names.append("model.safetensors.index.json")
        sizes = {"total_size": sum(tensor.nbytes for tensor in plan.targets.values())}
        where = {name: file for file, shard in plan.shards.items() for name in shard}
        write_file(staging / names[0], json.dumps({"metadata": sizes, "weight_map": where}, indent=2) + "\n")
    if plan.config is None:
        return names
    settings = read_config(plan.config)
    names += copy_files(plan.files, plan.config.parent, staging)
    if plan.config.name == CONFIG:
        floats = [tensor.dtype for tensor in plan.targets.values() if tensor.is_float]
        if floats:
            settings["torch_dtype" if "torch_dtype" in settings else "dtype"] = max(floats, key=floats.count)
    write_file(staging / plan.config.name, json_text(settings))
    return [*names, plan.config.name]


def _check_complete(output: Path, staging: Path, sums: Mapping[str, str]) -> None:
    """Check that no file was removed meanwhile: not all file systems have locks."""
    lost = next((name for name in sums if not (staging / name).is_file()), None)
    if lost is not None:
        raise ZerokitError(f"has lost '{lost}' during the export", where=output, hint="Export it again")
