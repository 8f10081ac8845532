"""What a folder of `DeepSpeedEngine.save_checkpoint` holds, read from the headers of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from zerokit.checkpoint.master_weights import master_weights_stage_1_2, master_weights_stage_3
from zerokit.checkpoint.model_parallel import TensorParallelCuts, join_ranks, tied_layer_names
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
from zerokit.documents import shown
from zerokit.errors import CheckpointError

_WRAPPERS = re.compile(r"(?<![^.])(?:_orig_mod|_checkpoint_wrapped_module)\.")
"""What torch.compile and wrappers of checkpointed blocks put into names; no model loads them."""


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """A checkpoint of one step, complete by its headers."""

    facts: CheckpointInfo
    files: Sequence[Path]
    storages: Sequence[Storage]
    """All of these files, moments of the optimizer included."""
    masters: Mapping[str, NamedTensor]
    """The weights of the optimizer, mostly float32; none of those that are not trained."""
    weights: Mapping[str, NamedTensor]
    """What the model computes with, as far as it is saved whole: all of it below stage 3, there buffers and
    what is not trained."""
    copies: Sequence[tuple[NamedTensor, NamedTensor]]
    """What two ranks have of the same buffer."""
    placeholders: Mapping[str, str]
    """The type in which the model has each parameter, also those that are divided."""
    aliases: Mapping[str, str]
    """Names of tied weights, and the name that has the tensor."""
    has_nameless_masters: bool
    """Whether the optimizer's weights are there in an order that nothing tells."""

    def dtype_of(self, name: str) -> str | None:
        """The type in which the model computes with a tensor."""
        weight = self.weights.get(name)
        return weight.dtype if weight is not None else self.placeholders.get(name)

    def copies_of(self, name: str) -> Sequence[NamedTensor]:
        """What other ranks have of a buffer."""
        return self._copies.get(name, ())

    @cached_property
    def _copies(self) -> dict[str, list[NamedTensor]]:
        found: dict[str, list[NamedTensor]] = {}
        for original, copy in self.copies:
            found.setdefault(original.name, []).append(copy)
        return found

    def tensors(self) -> dict[str, NamedTensor]:
        """Every tensor of the model once, by name: of the optimizer where it has it."""
        found = {**self.weights, **self.masters}
        others = {name: self.aliases.get(name, name) for name in found}
        return {name: found[name] for name, other in others.items() if other == name or other not in found}


def read_checkpoint(path: Path) -> DeepSpeedCheckpoint:
    """Read all of a checkpoint but the elements of its tensors.

    Args:
        path: as of :func:`read_facts`.

    Raises:
        CheckpointError: it is none, it is damaged, a file of a rank is missing, or of another step, rank or
            run, or it is of a kind that is not read.
    """
    saved = read_states(path)
    with explain_format_errors(saved[0].files.folder):
        parts = [_put_together(one) for one in saved]
        found = parts[0]
        if len(saved) > 1 or found.facts.pipeline_stages is not None:
            found = _united(saved, parts)
        if (folder := saved[0].files.universal) is not None:
            found = _with_universal(found, saved, folder)
        _check_shapes(found.masters, found.weights)
    return found


def _put_together(saved: SavedStates) -> DeepSpeedCheckpoint:
    """What one of the ranks that divide the model has of it: mostly, all."""
    facts, files, archives = saved.facts, saved.files, saved.archives
    models, optimizers = saved.models, saved.optimizers
    first = models[0]
    masters: dict[str, NamedTensor] = {}
    if optimizers and not facts.universal:
        put = master_weights_stage_3 if facts.stage == 3 else master_weights_stage_1_2
        masters = {tensor.name: tensor for tensor in put(shapes_of(first), optimizers)}
    weights = dict(_saved_whole(first, facts.stage))
    for file in files.experts.values():
        experts = archives[file].content.items()
        weights |= {name: whole_tensor(name, one) for name, one in experts if isinstance(one, StoredTensor)}
    if facts.stage == 3:
        weights |= dict(_frozen(models))
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
    """In 16 bits without ZeRO they lie beside the model (runtime/fp16/*_optimizer.py, `state_dict`).

    Otherwise ranks have them, of which the model names the shapes but where there are experts.
    """
    beside = model.get("optimizer") or ()
    return (
        "fp32_groups" in beside or "fp32_groups_flat" in beside or bool(optimizers and not shapes_of(model))
    )


def _united(saved: Sequence[SavedStates], parts: Sequence[DeepSpeedCheckpoint]) -> DeepSpeedCheckpoint:
    """The whole model, of what each rank has that divides it."""
    facts = parts[0].facts
    models = [one.models[0] for one in saved]
    buffers = [name for model in models for name in model.get("buffer_names") or ()]
    cuts = TensorParallelCuts(models[0].get("universal_checkpoint_info"), buffers)
    masters, pairs = join_ranks([part.masters for part in parts], facts.tensor_parallel, cuts)
    weights, others = join_ranks([part.weights for part in parts], facts.tensor_parallel, cuts)
    if facts.tensor_parallel > 1:
        cuts.check_used(weights | masters)
    pairs += [(one, copy) for one, copy in others if one.name not in masters]
    if facts.pipeline_stages is not None:
        names = tied_layer_names(weights, masters)
        weights = {names.get(name, name): one.named(names.get(name, name)) for name, one in weights.items()}
        missing = next((name for name in masters if name not in weights), None)
        if missing is not None:
            raise CheckpointError(
                f"lacks the layer that has '{missing}'", where=shown(facts.folder), hint=AGAIN
            )
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


def _with_universal(
    found: DeepSpeedCheckpoint, saved: Sequence[SavedStates], folder: Path
) -> DeepSpeedCheckpoint:
    """A universal checkpoint has the optimizer's weights whole, in a file for each."""
    shapes = {name: of for one in saved for group in shapes_of(one.models[0]) for name, of in group.items()}
    archives = {name: read_archive(folder / name / "fp32.pt") for name in shapes}
    masters = {}
    for name, archive in archives.items():
        content = archive.content
        tensor = content["param"] if isinstance(content, Mapping) else content
        # What ranks have of a divided model is smaller.
        masters[name] = joined_tensor(name, shapes[name] if len(saved) == 1 else tensor.shape, [tensor])
    return replace(
        found,
        files=[*found.files, *(archive.file for archive in archives.values())],
        storages=[*found.storages, *(one for archive in archives.values() for one in archive.storages)],
        masters=_unwrapped(masters),
    )


def _check_shapes(masters: Mapping[str, NamedTensor], weights: Mapping[str, NamedTensor]) -> None:
    """See that the optimizer's weights have the shapes of the model's."""
    for name, weight in weights.items():
        if name in masters and weight.shape != masters[name].shape:
            raise CheckpointError(
                f"has '{name}' of shape {list(weight.shape)}, and the optimizer of "
                f"{list(masters[name].shape)}: they are of different models",
                where=shown(weight.pieces[0].storage.file),
                hint=AGAIN,
            )


def _unwrapped(tensors: Mapping[str, NamedTensor]) -> dict[str, NamedTensor]:
    names = {name: _WRAPPERS.sub("", name) for name in tensors}
    return {names[name]: tensor.named(names[name]) for name, tensor in tensors.items()}


def _saved_whole(model: StateDict, stage: int) -> Iterator[tuple[str, NamedTensor]]:
    """The model's own tensors; under stage 3 those that are not divided, which are its buffers."""
    buffers = set(model.get("buffer_names") or ())
    for name, tensor in model["module"].items():
        if isinstance(tensor, StoredTensor) and (stage < 3 or name in buffers):
            yield name, whole_tensor(name, tensor)


def _frozen(models: Sequence[StateDict]) -> Iterator[tuple[str, NamedTensor]]:
    """Parameters that are not trained, of which every rank has a part."""
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        yield name, joined_tensor(name, shape, [model["frozen_param_fragments"][name] for model in models])


def _check_experts(files: StepFolder, model: StateDict) -> None:
    for layer, experts in enumerate(model.get("num_experts") or ()):
        missing = sorted(
            set(range(min(experts, MOST_RANKS))) - {number for of, number in files.experts if of == layer}
        )
        if missing:
            raise CheckpointError(
                f"lacks {len(missing):,} of the {experts:,} experts of mixture {layer}, such as {missing[0]}",
                where=shown(files.folder),
                hint="Copy them from the machines that saved them, or take an earlier checkpoint",
            )
