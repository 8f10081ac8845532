"""Sequence parallelism: DeepSpeed's Ulysses attention, with zerokit's own batches and loss.

All ranks of a group read the same rows, and each keeps its part of their tokens. In each attention layer
they exchange tokens for heads, so that a rank computes some heads over whole rows (arXiv:2309.14509).
accelerate passes the groups to DeepSpeed. Its data loader, its loss and its evaluation without parallelism are
replaced: they count tokens wrongly with accumulation, and need rows that fit on one rank.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from zerokit.config.base import ZERO
from zerokit.errors import RecipeError
from zerokit.hardware.cluster import Parallelism
from zerokit.models.parallelism import DividedModel, parallelism_misfit, undivided_layers
from zerokit.patches import Patch, put, wrap
from zerokit.training.examples import IGNORED

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

    from zerokit.distributed.parallel_groups import GroupPlace
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.contradictions import Resolved
    from zerokit.training.tasks.task import Collator

_SUPPORTS = {"sdpa": "_supports_sdpa", "flash": "_supports_flash_attn"}
"""Kinds of attention that can be divided, and where a model's class has whether it supports them."""
_LOADER = Patch("accelerate.accelerator:Accelerator", "deepspeed_ulysses_dl_adapter", "divide batches by itself")
_LENGTH = Patch("transformers.trainer:Trainer", "get_sp_size", "count the batches and tokens of zerokit's own loaders")
_REGISTER = Patch(
    "deepspeed.runtime.sequence_parallel.ulysses_sp:UlyssesSPAttentionHF",
    "register_with_transformers",
    "keep packed documents apart, and evaluate in parallel, too",
)

_STATE = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
_GROUPS = (
    Patch(_STATE, "_SEQUENCE_PARALLEL_GROUP", "make the groups of a later run in the same process"),
    Patch(_STATE, "_SEQUENCE_DATA_PARALLEL_GROUP", "make the groups of a later run in the same process"),
    Patch("deepspeed.utils.groups", "mpu", "forget the groups of an earlier run in the same process"),
)


def check_sequence_parallel(resolved: Resolved, loaded: LoadedRecipe) -> None:
    """Refuse a task, a stage, or arguments that do not go with sequence parallelism (RecipeError)."""
    if loaded.recipe.parallel.sequence == 1:
        return
    training, task = resolved.training, loaded.recipe.task.type
    zero = resolved.ds_config[ZERO]
    arranged = {"average_tokens_across_devices": True, "dataloader_drop_last": False, "torch_compile": False}
    unlike = [f"training.{name}" for name, value in arranged.items() if training.get(name, value) != value]
    if training.get("train_sampling_strategy") == "batch_rebalance":
        unlike.append("training.train_sampling_strategy")
    if task != "causal_lm":
        raise _refused(loaded, f"does not go with task {task}", "Remove it, or train a causal_lm")
    check_parallelism(loaded, "sequence", zero_stage=zero.get("stage", 0))
    if zero.get("reduce_scatter") is False:
        why, hint = "needs reduce_scatter: without it DeepSpeed divides gradients by fewer ranks", "Remove it"
    elif unlike:
        why, hint = f"does not go with {unlike[0]} {training[unlike[0].partition('.')[2]]}", f"Remove {unlike[0]}"
    else:
        return
    raise _refused(loaded, why, hint)


def check_parallelism(loaded: LoadedRecipe, *kind: str, **facts: Any) -> None:
    """Refuse sizes of the recipe's section `parallel` that do not fit (RecipeError).

    Args:
        kind: ``sequence`` or ``tensor``, if one of them is checked.
        facts: of the run, as for :func:`parallelism_misfit`.
    """
    misfit = parallelism_misfit(Parallelism(**loaded.recipe.parallel.model_dump()), **facts)
    if misfit is not None:
        raise RecipeError(misfit.message, where=loaded.where("parallel", *kind), hint=misfit.hint)


def divided_model(text: PretrainedConfig) -> DividedModel:
    """What parallelism divides of a text config."""
    heads = int(text.num_attention_heads)
    keys, layers = int(getattr(text, "num_key_value_heads", None) or heads), undivided_layers(text.to_dict())
    return DividedModel(text.model_type, heads, keys, undivided_layers=layers)


def _refused(loaded: LoadedRecipe, why: str, hint: str) -> RecipeError:
    return RecipeError(f"sequence parallelism {why}", where=loaded.where("parallel", "sequence"), hint=hint)


def check_model(model: Any, config: PretrainedConfig, mixed: str | None, loaded: LoadedRecipe) -> None:
    """Refuse a model whose attention cannot be divided by heads (RecipeError).

    Args:
        model: its class; None if its code is not part of transformers.
        mixed: why documents in one row would see each other; None if the model keeps them apart.
    """
    supported = [kind for kind, name in _SUPPORTS.items() if getattr(model, name, False)]
    attention = loaded.recipe.model.attn_implementation or getattr(config, "_attn_implementation", None)
    attention = attention or ("sdpa" if "sdpa" in supported else "eager")
    hint = "Remove parallel.sequence"
    if mixed is not None:
        raise _refused(loaded, f"does not go with this run: {mixed}", hint)
    check_parallelism(loaded, "sequence", model=divided_model(config.get_text_config(decoder=True)))
    if "s_aux" in inspect.getsource(sys.modules[model.__module__]):
        why = f"does not go with {config.model_type}: it does not divide its attention sinks, one for each head"
    elif ("flash" if "flash" in attention else attention) not in supported:
        why = f"does not go with {attention} attention of {config.model_type}"
        if supported:
            hint = f"Set model.attn_implementation to {'sdpa' if 'sdpa' in supported else 'flash_attention_2'}"
    elif not getattr(model, "_supports_attention_backend", False) or not _passes_on(model):
        why = f"does not go with {config.model_type}: its code does not call transformers' attention functions"
    else:
        return
    raise _refused(loaded, why, hint)


def _passes_on(model: Any) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in inspect.signature(model.forward).parameters.values())


def parallelism_config(place: GroupPlace) -> Any:
    """accelerate's description of the groups, for TrainingArguments."""
    from accelerate import ParallelismConfig
    from accelerate.utils import DeepSpeedSequenceParallelConfig

    handler = DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True, sp_attn_implementation="sdpa")
    size = place.parallelism.sequence
    return ParallelismConfig(sp_size=size, sp_backend="deepspeed", sp_handler=handler, dp_shard_size=place.data_ranks)


def divide_attention(place: GroupPlace) -> None:
    """Have DeepSpeed's engine, once it is made, divide the attention of its model, and nothing else.

    Each run of a process calls it: without sequence parallelism attention is transformers' own again.
    """
    _restore_attention()
    for patch in _GROUPS:
        put(patch, None)
    if place.parallelism.sequence > 1:
        put(_LOADER, lambda self, loader, model: loader)
        put(_LENGTH, lambda self: 1)
        wrap(_REGISTER, _register)


_divided: list[tuple[Any, str]] = []
"""transformers' mappings in which a name has another function than transformers' own."""


def _restore_attention() -> None:
    while _divided:
        functions, name = _divided.pop()
        del functions[name]


def _register(original: Callable[..., Any], cls: Any, model_name_or_path: Any, **given: Any) -> Any:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    _restore_attention()  # each run wraps DeepSpeed's function again
    attention = model_name_or_path.config._attn_implementation
    _divided.append((ALL_ATTENTION_FUNCTIONS, attention))
    if attention == "sdpa":
        ALL_ATTENTION_FUNCTIONS[attention] = attend
        # DeepSpeed ignores the mask, which has the square of this rank's tokens.
        _divided.append((ALL_MASK_ATTENTION_FUNCTIONS, attention))
        ALL_MASK_ATTENTION_FUNCTIONS[attention] = lambda **_: None
    else:
        usual = ALL_ATTENTION_FUNCTIONS[attention]
        ALL_ATTENTION_FUNCTIONS[attention] = partial(_attend_to_documents, usual)
    # All rows of a batch are joined into one.
    given |= {"core_attn_implementation": attention, "micro_batch_size": 1, "disable_in_eval": False}
    return original(cls, model_name_or_path, **given)


def _attend_to_documents(usual: Any, module: Any, query: Any, *args: Any, documents: Any = None, **given: Any) -> Any:
    """Flash attention of each document by itself; by the gathered positions each layer would search for them."""
    if documents is None:
        return usual(module, query, *args, **given)
    ends = _document_ends(tuple(documents), query.device)
    for side in "qk":
        given |= {f"cu_seq_lens_{side}": ends, f"max_length_{side}": max(documents)}
    return usual(module, query, *args, **given)


@lru_cache(maxsize=2)
def _document_ends(documents: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Where documents of a row end, for all layers: each copy to the device would wait."""
    import torch

    return torch.tensor([0, *accumulate(documents)], dtype=torch.int32).to(device)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    documents: list[int] | None = None,
    sliding_window: int | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention by torch's kernels, of one document after another: (1, tokens, heads, width).

    A layer with a sliding window goes through a document in blocks of the window's length. Each block sees itself
    and the block before it, which needs a mask. All layers share the mask.

    Args:
        query: (1, heads, tokens, width), as `key` and `value`, of whole rows.
        documents: number of tokens of each document in the row; None leaves all to transformers.
        given: as for transformers' ``sdpa_attention_forward``.
    """
    import torch
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if documents is None:
        given |= {"sliding_window": sliding_window}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)  # type: ignore[no-any-return]
    made, start = [], 0
    for length in documents:
        block = length if sliding_window is None else min(length, sliding_window)
        for first in range(start, start + length, block):
            last, before = min(first + block, start + length), max(start, first - block)
            mask = None
            if first > start:
                mask = _window_mask(block, query.dtype, query.device)[..., : last - first, : last - before]
            part = query[:, :, first:last], key[:, :, before:last], value[:, :, before:last]
            made.append(sdpa_attention_forward(module, *part, mask, **given)[0])
        start += length
    return torch.cat(made, dim=1), None


@lru_cache(maxsize=4)
def _window_mask(window: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The bias of a block of queries to the keys of the block before it and its own: (1, 1, window, 2 window).

    torch would convert a mask of another type in each call, and autograd save each result. It also copies rows
    whose stride is not a multiple of 8 (`preprocess_mask` in aten's attention.cpp), so these are longer.
    """
    import torch

    row = torch.arange(-(-2 * window // 8) * 8, device=device)
    distance = row[window : 2 * window, None] - row
    unseen = (distance < 0) | (distance >= window)
    return torch.zeros(unseen.shape, dtype=dtype, device=device).masked_fill_(unseen, -torch.inf)[None, None]


def collate_part(collator: Collator, place: GroupPlace, features: list[dict[str, Any]]) -> Mapping[str, Any]:
    """This rank's tokens of a batch that all ranks of its group have, before it goes to the device.

    Args:
        collator: returns tensors of (1, tokens), of one row; the tokens divide by the ranks that share them.

    Returns:
        The tensors of (1, tokens / ranks). `labels` has one more: the label that the last token predicts.
        `documents` has the number of tokens of each document in the whole row.
    """
    from torch.nn.functional import pad

    ranks, number, inputs = place.parallelism.sequence, place.sequence_rank, collator(features)
    positions = inputs["position_ids"]
    size = positions.shape[1] // ranks
    start, end = number * size, (number + 1) * size
    part = {name: values[:, start:end].contiguous() for name, values in inputs.items()}
    part["labels"] = pad(inputs["labels"], (0, 1), value=IGNORED)[:, start : end + 1].contiguous()
    starts = [*(positions[0] == 0).nonzero().flatten().tolist(), positions.shape[1]]
    return {**part, "documents": [after - before for before, after in pairwise(starts)]}
