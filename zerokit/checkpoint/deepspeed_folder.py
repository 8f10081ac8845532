"""Reads a folder of `DeepSpeedEngine.save_checkpoint` from the headers of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from zerokit.checkpoint.master_weights import master_weights_stage_1_2, master_weights_stage_3
from zerokit.checkpoint.model_parallel import TensorParallelCuts, join_ranks, replicated_names, tied_layer_names
from zerokit.checkpoint.saved_states import (
    MOST_RANKS,
    CheckpointInfo,
    SavedStates,
    StateDict,
    explain_format_errors,
    read_states,
    shapes_of,
)
from zerokit.checkpoint.step_folder import AGAIN, StepFolder
from zerokit.checkpoint.tensors import NamedTensor, joined_tensor, whole_tensor
from zerokit.checkpoint.torch_file import Storage, StoredTensor, read_archive
from zerokit.errors import CheckpointError

_WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_checkpoint_wrapped_module)\.")
"""Parts of names that torch.compile and checkpoint wrappers add; models do not load them."""


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """A checkpoint of one step; all its files are present."""

    facts: CheckpointInfo
    files: Sequence[Path]
    storages: Sequence[Storage]
    """Storages of all files, including optimizer moments."""
    masters: Mapping[str, NamedTensor]
    """Master weights of the optimizer, mostly float32; frozen parameters have none."""
    weights: Mapping[str, NamedTensor]
    """Weights of the model that are saved whole: all below stage 3; under stage 3 buffers and frozen
    parameters."""
    copies: Sequence[tuple[NamedTensor, NamedTensor]]
    """Copies of a buffer on two ranks."""
    placeholders: Mapping[str, str]
    """The type of each parameter in the model, also of partitioned ones."""
    aliases: Mapping[str, str]
    """Names of tied weights, with the name that has the tensor."""
    has_nameless_masters: bool
    """Whether master weights are saved without names."""

    def dtype_of(self, name: str) -> str | None:
        """The type of a tensor in the model."""
        weight = self.weights.get(name)
        return weight.dtype if weight is not None else self.placeholders.get(name)

    def copies_of(self, name: str) -> Sequence[NamedTensor]:
        """Other ranks' copies of a buffer."""
        return self._copies.get(name, ())

    @cached_property
    def _copies(self) -> dict[str, list[NamedTensor]]:
        found: dict[str, list[NamedTensor]] = {}
        for original, copy in self.copies:
            found.setdefault(original.name, []).append(copy)
        return found

    def tensors(self) -> dict[str, NamedTensor]:
        """Every tensor of the model by name: its master weight if there is one."""
        found = {**self.weights, **self.masters}
        others = {name: self.aliases.get(name, name) for name in found}
        return {name: found[name] for name, other in others.items() if other == name or other not in found}


def read_checkpoint(path: Path) -> DeepSpeedCheckpoint:
    """Read a checkpoint except the elements of its tensors.

    Raises:
        CheckpointError: it is no checkpoint, is damaged or of an unsupported kind; or a file of a rank is
            missing or belongs to another step, rank or run.
    """
    saved = read_states(path)
    with explain_format_errors(saved[0].files.folder):
        parts = [_put_together(one, saved) for one in saved]
        found = parts[0]
        if len(saved) > 1 or found.facts.pipeline_stages is not None:
            found = _united(saved, parts)
        if (folder := saved[0].files.universal) is not None:
            found = _with_universal(found, saved, folder)
        _check_shapes(found.masters, found.weights)
    return found


def _put_together(saved: SavedStates, of_all: Sequence[SavedStates]) -> DeepSpeedCheckpoint:
    """The part of the model on one of all model-parallel ranks; mostly the whole model."""
    facts, files, archives = saved.facts, saved.files, saved.archives
    models, optimizers = saved.models, saved.optimizers
    first = models[0]
    masters: dict[str, NamedTensor] = {}
    if optimizers and not facts.universal:
        shapes = shapes_of(first)
        if facts.stage == 3:
            by_rank = [states for group in zip(*(one.optimizers for one in of_all), strict=True) for states in group]
            replicated = replicated_names(first.get("universal_checkpoint_info"), chain.from_iterable(shapes))
            found = master_weights_stage_3(shapes, optimizers, by_rank, replicated)
        else:
            found = master_weights_stage_1_2(shapes, optimizers)
        masters = {tensor.name: tensor for tensor in found}
    weights = dict(_saved_whole(first, facts.stage))
    for file in files.experts.values():
        experts = archives[file].content.items()
        weights |= {name: whole_tensor(name, one) for name, one in experts if isinstance(one, StoredTensor)}
    if facts.stage == 3:
        weights |= frozen_parameters(models)
    _check_experts(files, first)
    buffers = weights.keys() & set(first.get("buffer_names") or ())
    computed = {name: one for name, one in first["module"].items() if isinstance(one, StoredTensor)}
    tied = first.get("shared_params") or {}
    masters, weights = _unwrapped(masters), _unwrapped(weights)
    return DeepSpeedCheckpoint(
        facts,
        list(archives),
        [storage for archive in archives.values() for storage in archive.storages],
        masters,
        weights,
        [
            (weights[_WRAPPERS.sub("", name)], whole_tensor(name, other["module"][name]))
            for other in models[1:]
            for name in buffers
        ],
        {_WRAPPERS.sub("", name): one.dtype for name, one in computed.items()},
        {_WRAPPERS.sub("", name): _WRAPPERS.sub("", of) for name, of in tied.items()},
        _has_nameless_masters(first, optimizers),
    )


def _has_nameless_masters(model: StateDict, optimizers: Sequence[StateDict]) -> bool:
    """Whether master weights have no names: in 16 bits without ZeRO (runtime/fp16/*_optimizer.py,
    `state_dict`).

    Otherwise ranks have them, and the model states name their shapes unless there are experts.
    """
    beside = model.get("optimizer") or ()
    return "fp32_groups" in beside or "fp32_groups_flat" in beside or bool(optimizers and not shapes_of(model))


def _united(saved: Sequence[SavedStates], parts: Sequence[DeepSpeedCheckpoint]) -> DeepSpeedCheckpoint:
    """Join the parts of all model-parallel ranks."""
    facts = parts[0].facts
    models = [one.models[0] for one in saved]
    buffers = [name for model in models for name in model.get("buffer_names") or ()]
    cuts = TensorParallelCuts(models[0].get("universal_checkpoint_info"), buffers)
    masters, pairs = join_ranks([part.masters for part in parts], facts.tensor_parallel, cuts)
    weights, others = join_ranks([part.weights for part in parts], facts.tensor_parallel, cuts)
    pairs += [(one, copy) for one, copy in others if one.name not in masters]
    if facts.pipeline_stages is not None:
        names = tied_layer_names(weights, masters)
        weights = {names.get(name, name): one.named(names.get(name, name)) for name, one in weights.items()}
        missing = next((name for name in masters if name not in weights), None)
        if missing is not None:
            raise CheckpointError(f"lacks the layer with '{missing}'", where=facts.folder, hint=AGAIN)
    return DeepSpeedCheckpoint(
        facts,
        [file for part in parts for file in part.files],
        [storage for part in parts for storage in part.storages],
        masters,
        weights,
        [*(pair for part in parts for pair in part.copies), *pairs],
        {name: of for part in parts for name, of in part.placeholders.items()},
        {name: of for part in parts for name, of in part.aliases.items()},
        any(part.has_nameless_masters for part in parts),
    )


def _with_universal(found: DeepSpeedCheckpoint, saved: Sequence[SavedStates], folder: Path) -> DeepSpeedCheckpoint:
    """Read the whole master weights of a universal checkpoint, one file each."""
    shapes = {name: of for one in saved for group in shapes_of(one.models[0]) for name, of in group.items()}
    archives = {name: read_archive(folder / name / "fp32.pt") for name in shapes}
    masters = {}
    for name, archive in archives.items():
        content = archive.content
        tensor = content["param"] if isinstance(content, Mapping) else content
        # Shapes of ranks of a divided model are smaller.
        masters[name] = joined_tensor(name, shapes[name] if len(saved) == 1 else tensor.shape, [tensor])
    return replace(
        found,
        files=[*found.files, *(archive.file for archive in archives.values())],
        storages=[*found.storages, *(one for archive in archives.values() for one in archive.storages)],
        masters=_unwrapped(masters),
    )


def _check_shapes(masters: Mapping[str, NamedTensor], weights: Mapping[str, NamedTensor]) -> None:
    """Check that master weights have the shapes of the model's weights."""
    for name, weight in weights.items():
        if name in masters and weight.shape != masters[name].shape:
            raise CheckpointError(
                f"has '{name}' of shape {list(weight.shape)}, and the optimizer of "
                f"{list(masters[name].shape)}: they belong to different models",
                where=weight.pieces[0].storage.file,
                hint=AGAIN,
            )


def _unwrapped(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    names = {name: _WRAPPERS.sub("", name) for name in tensors}
    return {names[name]: tensor.named(names[name]) for name, tensor in tensors.items()}


def _saved_whole(model: StateDict, stage: int) -> Iterator[tuple[str, NamedTensor]]:
    """The model's own tensors; under stage 3 only buffers, which are not partitioned."""
    buffers = set(model.get("buffer_names") or ())
    for name, tensor in model["module"].items():
        if isinstance(tensor, StoredTensor) and (stage < 3 or name in buffers):
            yield name, whole_tensor(name, tensor)


def frozen_parameters(models: Sequence[StateDict]) -> dict[str, NamedTensor]:
    """Frozen parameters of stage 3, of which every rank has a part."""
    return {
        name: joined_tensor(name, shape, [model["frozen_param_fragments"][name] for model in models])
        for name, shape in (models[0].get("frozen_param_shapes") or {}).items()
    }


def _check_experts(files: StepFolder, model: StateDict) -> None:
    for layer, experts in enumerate(model.get("num_experts") or ()):
        missing = sorted(
            set(range(min(experts, MOST_RANKS))) - {number for of, number in files.experts if of == layer}
        )
        if missing:
            raise CheckpointError(
                f"lacks {len(missing):,} of the {experts:,} experts of mixture {layer}, such as {missing[0]}",
                where=files.folder,
                hint="Copy them from the machines that saved them, or use an earlier checkpoint",
            )
