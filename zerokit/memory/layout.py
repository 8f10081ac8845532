"""All parameters of a run in the order of `Module.parameters()`, including adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import groupby

from zerokit.errors import ZerokitError
from zerokit.memory.adapters import AdapterPart, Ia3, LearnedTokens, Lora, is_target
from zerokit.memory.model_states import ceil_div
from zerokit.memory.same_object import SameObject
from zerokit.memory.training_run import TrainingRun
from zerokit.memory.traits import traits_of
from zerokit.models import ModelShape
from zerokit.models.tensors import Kind, Tensor

_STAR = ".*."
_MOST_PIECES = 1000
_LEAST_PIECE = 10**7


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One parameter tensor. Each is itself alone: a module may have two of the same size."""

    module: str
    """The owning module with the layer's number: ``model.layers.0.mlp.up_proj``."""
    elements: int
    trainable: bool
    kind: Kind
    adapter: AdapterPart | None = None
    """The part of an adapter; None: a parameter of the model."""
    packed: bool = False
    """In 4 bits by bitsandbytes; DeepSpeed does not partition it."""
    replicas: int = 1
    """Ranks of tensor parallelism among which `zero.Init` divides it, besides those of ZeRO."""


def _num_elements(parameters: Sequence[Parameter]) -> int:
    return sum(ceil_div(one.elements, one.replicas) for one in parameters)


@dataclass(frozen=True, eq=False)
class Layout:
    """The parameters of a run. Runs that train the same parameters of a model share one."""

    parameters: tuple[Parameter, ...]

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """Parameters with gradients and optimizer states."""
        return tuple(parameter for parameter in self.parameters if parameter.trainable)

    @cached_property
    def packed(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.packed)

    @cached_property
    def unpacked(self) -> Layout:
        """The layout without parameters in 4 bits."""
        return Layout(tuple(one for one in self.parameters if not one.packed)) if self.packed else self

    @cached_property
    def num_parameters(self) -> int:
        """Φ, adapters included; of tensor parallelism, those that a rank shares with ZeRO's ranks alone."""
        return _num_elements(self.parameters)

    @cached_property
    def num_trainable(self) -> int:
        """Elements of `trainable`."""
        return _num_elements(self.trainable)

    @cached_property
    def num_frozen(self) -> int:
        """Elements of frozen parameters."""
        return self.num_parameters - self.num_trainable


def layout_of(run: TrainingRun) -> Layout:
    """The parameters of `run`; equal tensors for a bare number of parameters.

    Raises:
        ZerokitError: LoRA or frozen modules for a bare number, or targets that the model does not have.
    """
    if isinstance(run.model, int):
        return Layout(tuple(_bare(run)))
    return _layout(
        *(SameObject(run.model), run.adapter, run.learned_tokens, run.frozen_modules), in_4_bits=run.load_in_4bit
    )


@lru_cache(maxsize=8)
def _layout(
    same_model: SameObject[ModelShape],
    adapter: Lora | Ia3 | None,
    learned_tokens: LearnedTokens | None,
    frozen_modules: tuple[str, ...],
    *,
    in_4_bits: bool,
) -> Layout:
    model = same_model.value
    layered = list(_one_by_one(model.tensors))
    if adapter is not None:
        packs = in_4_bits and traits_of(model.model_type).torch_linear
        parameters = list(_with_adapters(layered, adapter, packs=packs))
        if not any(parameter.adapter for parameter in parameters):
            targets = adapter.target_modules or ()
            named = (targets,) if isinstance(targets, str) else targets
            raise ZerokitError(
                f"the model has no module {' or '.join(map(repr, named))}",
                where="--lora-targets",
                hint="Name modules as the model does, or use 'all-linear'",
            )
        return Layout(tuple(parameters))
    if learned_tokens is not None:
        frozen = (Parameter(_module(name), tensor.elements, False, tensor.kind) for name, tensor in layered)
        learned = Parameter("prompt_encoder", learned_tokens.num_parameters, True, "embedding")
        return Layout((*frozen, learned))
    for start in frozen_modules:
        if not start or not any(name.startswith(start) for name, _ in layered):
            raise ZerokitError(
                f"no parameter's name begins with '{start}'",
                where="--freeze",
                hint="Begin as the model does, as in 'model.embed'",
            )
    return Layout(
        tuple(
            Parameter(
                _module(name),
                tensor.elements,
                tensor.trainable and not name.startswith(frozen_modules or ("\0",)),
                tensor.kind,
            )
            for name, tensor in layered
        )
    )


def _bare(run: TrainingRun) -> Iterator[Parameter]:
    assert isinstance(run.model, int)
    if run.adapter is not None or run.learned_tokens is not None or run.frozen_modules:
        raise ZerokitError(
            "adapters and frozen modules need a model, not a number of parameters",
            where="model",
            hint="Name a model, or give the number of trainable parameters",
        )
    trainable = run.model if run.num_trainable_parameters is None else run.num_trainable_parameters
    if trainable > run.model:
        raise ZerokitError(
            f"{trainable:,} is more than the model's {run.model:,} parameters",
            where="--trainable-parameters",
            hint="Give at most as many",
        )
    yield from _pieces("model", trainable, trainable=True)
    if run.model > trainable:
        yield from _pieces("frozen", run.model - trainable, trainable=False)


def _pieces(module: str, number: int, *, trainable: bool) -> Iterator[Parameter]:
    """Tensors of at least 10 million elements. One single tensor would be gathered and reduced at once."""
    count = max(1, min(_MOST_PIECES, number // _LEAST_PIECE))
    share, rest = divmod(number, count)
    for piece in range(count):
        yield Parameter(module, share + (piece < rest), trainable, "other")


def _one_by_one(tensors: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors, layer by layer."""
    for prefix, group in groupby(tensors, key=lambda one: one.name.partition(_STAR)[0] if _STAR in one.name else None):
        members = list(group)
        if prefix is None:
            yield from ((tensor.name, tensor) for tensor in members)
            continue
        own = [tensor.count for tensor in members if not _is_stack_of_stacks(tensor)]
        layers = max(own or [tensor.count for tensor in members])
        for layer in range(layers):
            parts = [
                replace(tensor, name=tensor.name.replace("*", str(layer), 1), count=count)
                for tensor in members
                if (count := _count_in(tensor, layer, layers))
            ]
            yield from _one_by_one(parts)


def _count_in(tensor: Tensor, layer: int, layers: int) -> int:
    """Layers with experts come last, as in DeepSeek and Qwen."""
    if _is_stack_of_stacks(tensor):
        return tensor.count * (layer + 1) // layers - tensor.count * layer // layers
    if tensor.kind in ("expert", "router") or "shared_expert" in tensor.name:
        return int(layer >= layers - tensor.count)
    return int(layer < tensor.count)


def _is_stack_of_stacks(tensor: Tensor) -> bool:
    """Whether each layer has a list of such tensors, such as norms per head."""
    return tensor.name.count(_STAR) > 1


def _module(name: str) -> str:
    """The module of a parameter; names without ``.weight`` or ``.bias`` belong to the module above."""
    return name.rpartition(".")[0]


def _with_adapters(layered: Sequence[tuple[str, Tensor]], adapter: Lora | Ia3, *, packs: bool) -> Iterator[Parameter]:
    """Frozen parameters, and the adapter after each target.

    Source: ``all-linear`` leaves out the output matrix (peft tuners/tuners_utils.py
    _maybe_include_all_linear_layers).
    """
    targets = adapter.target_modules or ()
    for module, group in groupby(layered, key=lambda named: _module(named[0])):
        members = list(group)
        for name, tensor in members:
            packed = packs and name.endswith(".weight") and _is_linear(tensor)
            yield Parameter(module, tensor.elements, False, tensor.kind, packed=packed)
        for name, tensor in members:
            if name.endswith(".weight") and _is_linear(tensor) and is_target(module, targets):
                inputs, outputs = _sizes(tensor)
                for own, part, elements in adapter.parts(module, inputs, outputs):
                    yield Parameter(f"{module}.{own}", elements, True, tensor.kind, adapter=part)


def _sizes(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    outputs, inputs = tensor.shape
    if tensor.name.startswith("transformer.h.") and "c_" in tensor.name:
        return outputs, inputs  # GPT-2's Conv1D is stored the other way round
    return inputs, outputs


def _is_linear(tensor: Tensor) -> bool:
    return len(tensor.shape) == 2 and tensor.kind in ("attention", "mlp")
