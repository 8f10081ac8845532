"""Reports a run before it starts: the model, the data, and where its model states are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from zerokit import console
from zerokit.errors import ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.memory import ModelStates, TrainingRun
from zerokit.memory.bnb_4bit import packed_bytes
from zerokit.memory.loss_chunks import chunk_tokens, saves_memory
from zerokit.memory.settings import settings_of
from zerokit.recipe.load import EMBEDDED
from zerokit.training.preflight import divided_states, expected_peak, own_optimizer, plain_config
from zerokit.units import format_bytes, format_count, quantity

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

    from zerokit.training.packing import Padding
    from zerokit.training.run_context import RunContext
    from zerokit.training.tasks.task import Task


class ExpectedMemory(NamedTuple):
    """Expected memory of a rank's device, in bytes; None if it is not estimated."""

    model_states_bytes: int | None
    peak_bytes: int | None
    """Of the fullest rank; on rank 0 alone."""


def announce(context: RunContext, model: PreTrainedModel, *, cuda: bool, chunked: bool = False) -> ExpectedMemory:
    """Report the run and return its expected memory. `chunked`: whether the loss is in chunks."""
    whole, trained = count_parameters(model, trainable=False), count_parameters(model, trainable=True)
    group, world_size = context.group, context.group.ranks.world_size
    try:
        packed = [parameter for parameter in model.parameters() if is_packed(parameter)]
        rest = whole - sum(map(num_elements, packed))
        if context.group_place.parallelism.tensor > 1:
            states = divided_states(context, model, trained)
        else:
            states = expected_states(context.resolved.ds_config, context.args, world_size, rest, trained)
        sizes = (
            packed_bytes(num_elements(parameter), double_quant=parameter.quant_state.nested) for parameter in packed
        )
        states = replace(states, parameters=replace(states.parameters, packed_bytes=sum(sizes)))
    except ZerokitError as error:
        kept, line = None, f"model states are not counted: {error.message}"
    else:
        kept, line = states.total_bytes, states_line(states, cuda=cuda)
    peak = None
    if group.ranks.is_main:
        console.note(_begins(context))
        rows = "streamed rows" if context.stream is not None else quantity(len(context.train), "row")
        console.note(
            f"{format_count(whole)} parameters, {format_count(trained)} trained, {context.precision}, "
            f"ZeRO-{context.zero_stage} on {quantity(world_size, 'rank')}; "
            f"{rows}, {len(context.held_out or ())} held out"
        )
        console.note(line)
        padding = context.padding and padding_line(context.padding, context.task, context.train)
        if padding:
            console.note(padding)
        if (parts := context.loaded.recipe.parallel.sequence) > 1:
            console.note(
                f"sequence parallelism: {parts} ranks share the tokens of a micro batch, "
                f"which is one row, padded to a multiple of {parts}"
            )
        if (parts := context.loaded.recipe.parallel.tensor) > 1:
            console.note(f"tensor parallelism: {parts} ranks divide each layer, and compute the same micro batch")
        if chunked and (tokens := _chunk(context, model)) is not None:
            console.note(
                f"the loss is computed {tokens:,} tokens at a time, to have no more logits in memory; "
                "task.chunked_loss: false has it take all at once"
            )
        if cuda:
            import torch

            size = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            lines, peak = expected_peak(context, model, trained, group.ranks, size, chunked=chunked)
            for each in lines:
                console.note(each)
    return ExpectedMemory(kept, peak)


def _begins(context: RunContext) -> str:
    """What the run trains, where it begins, and where it saves."""
    recipe, resume = context.loaded.origins.document.name, context.output.resume
    what = context.loaded.recipe.model.path or "a model from scratch"
    what = f"{what} by the {recipe}, as there is no --recipe" if recipe in EMBEDDED.values() else what
    since = "" if resume is None else f", resumed from {resume}"
    return f"trains {what}{since}; saved in {context.output_dir}"


def _chunk(context: RunContext, model: PreTrainedModel) -> int | None:
    """Tokens in a chunk of logits; None if even the largest batch fits one chunk."""
    args, section = context.args, context.task.section
    config = model.config.get_text_config(decoder=True)
    head = model.get_output_embeddings()
    trained = head is not None and any(parameter.requires_grad for parameter in head.parameters())
    tokens = args.per_device_train_batch_size * context.task.sequences_per_example * section.seq_len
    saves = saves_memory(tokens, config.vocab_size, hidden=config.hidden_size, trained=trained)
    return chunk_tokens(config.vocab_size) if saves else None


def expected_states(
    ds_config: Mapping[str, Any], args: Any, world_size: int, num_parameters: int, num_trainable: int
) -> ModelStates:
    """The model states of one rank; ZerokitError for an optimizer whose memory is not known."""
    run = TrainingRun(
        model=num_parameters,
        ds_config=plain_config(ds_config),
        cluster=Cluster(world_size),
        optimizer=own_optimizer(ds_config, args),
    )
    return settings_of(run).model_states(num_parameters, num_trainable)


def states_line(states: ModelStates, *, cuda: bool) -> str:
    """``model states per rank: parameters 2.30 GiB on the GPU, ...``."""
    places = {"GPU": "the GPU" if cuda else "the CPU", "host": "the host", "NVMe": "NVMe"}
    parts = [f"{state.name} {format_bytes(state.bytes)} on {places[state.where]}" for state in states.each]
    return f"model states per rank: {', '.join(parts)}; activations come on top"


def padding_line(padding: Padding, task: Task, train: Dataset) -> str | None:
    """``padding-free batches: 3.5% padding instead of 15.9% (...); 32 examples a step``; None if equal."""
    packed = "position_ids" in train.column_names
    share, if_padded = (f"{each:.1%}" for each in (padding.share, padding.share_if_padded))
    if share == if_padded:
        return None
    shares = f"{share} padding instead of {if_padded}"
    noun = "documents" if packed else "examples"
    return f"{task.layout_words(shares, packed=packed)}; {padding.examples_per_step:,.4g} {noun} a step"


def count_parameters(model: PreTrainedModel, *, trainable: bool) -> int:
    """Number of whole parameters."""
    return sum(num_elements(parameter) for parameter in model.parameters() if parameter.requires_grad or not trainable)


def is_packed(parameter: Any) -> bool:
    """Whether bitsandbytes stores it in 4 bits."""
    return getattr(parameter, "quant_state", None) is not None


def num_elements(parameter: Any) -> int:
    """Elements of a whole parameter. numel() is 0 under ZeRO-3, and half of them in 4 bits."""
    if is_packed(parameter):
        return int(parameter.quant_state.shape.numel())
    return getattr(parameter, "ds_numel", None) or int(parameter.numel())
