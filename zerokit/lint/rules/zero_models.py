"""Stage 3 against the model that it divides."""

from __future__ import annotations

from collections.abc import Iterator

from zerokit.config.base import ZERO
from zerokit.lint.examples import Facts, llama_8b, mixture_of_experts, zero
from zerokit.lint.rule import Hit, Rules
from zerokit.lint.subject import Subject
from zerokit.resolving.who_fills import SIZE_RULES

rule = Rules("zero")

_LEAVES = frozenset({"mixtral", "qwen2_moe", "qwen3_moe"})
"""The `model_type` of models whose expert blocks DeepSpeed treats as leaf modules by itself."""


@rule(
    "moe-leaf-module",
    severity="info",
    bad=zero(3),
    good=zero(3, leaf_module={"name_suffixes": ["mlp"]}),
    given=Facts(model=mixture_of_experts),
    needs=("model",),
)
def moe_leaf_module(subject: Subject) -> Iterator[Hit]:
    """A mixture of experts without leaf modules in stage 3

    Stage 3 gathers parameters module by module, all ranks together. If the experts are modules of their own,
    a rank that routes tokens to other experts than its neighbours gathers other parameters, and training gets
    stuck. DeepSpeed avoids this by gathering a block of experts as one ("leaf module"), and knows the blocks
    of Mixtral, Qwen2-MoE and Qwen3-MoE.

    Transformers 5 keeps the experts of most models in one tensor, which every rank gathers anyway, so that
    this is unlikely there. Name the block in `leaf_module` for older releases and for models with code of
    their own; accelerate does the same with `deepspeed_moe_layer_cls_names`.

    Source: `deepspeed/runtime/zero/leaf_module_config.py`; DeepSpeed pull requests 4966 and 5008.
    """
    model = subject.run.model
    if subject.stage != 3 or model is None or not model.is_moe or model.model_type in _LEAVES:
        return
    if subject.is_absent(ZERO, "leaf_module"):
        message = f"DeepSpeed has no leaf module for the experts of '{model.model_type}'"
        hint = "Name the class of its expert block in 'leaf_module.classes' if training gets stuck"
        yield Hit((ZERO,), message, hint)


@rule(
    "nothing-divided",
    severity="warning",
    bad=zero(3, stage3_param_persistence_threshold=1e9),
    good=zero(3, stage3_param_persistence_threshold=1e5),
    given=Facts(model=llama_8b),
    needs=("model",),
)
def nothing_divided(subject: Subject) -> Iterator[Hit]:
    """A persistence threshold that keeps most of the model on every GPU

    Parameters of up to `stage3_param_persistence_threshold` elements stay whole on every GPU, to spare many
    small messages. The threshold is meant for norms and biases. Above the size of a weight matrix, stage 3
    divides hardly anything any more and takes the memory of stage 2, with more communication.

    "auto" sets it to 10 times the hidden size.

    Source: `mark_persistent_parameters` in `deepspeed/runtime/zero/parameter_offload.py`.
    """
    model, key = subject.run.model, "stage3_param_persistence_threshold"
    threshold = subject.zero.stage3_param_persistence_threshold
    if (
        subject.stage != 3
        or model is None
        or not isinstance(threshold, int)
        or subject.is_uncertain(ZERO, key)
    ):
        return
    kept = sum(tensor.total_elements for tensor in model.tensors if tensor.elements <= threshold)
    kept = min(kept, subject.zero.stage3_model_persistence_threshold)
    if kept > model.num_parameters / 10:
        message = (
            f"parameters of up to {threshold:,} elements stay whole on every GPU: "
            f"{kept / model.num_parameters:.0%} of the model"
        )
        place = (ZERO, key) if subject.is_set(ZERO, key) else (ZERO,)
        wanted = SIZE_RULES[key].elements(model.hidden_size) if model.hidden_size else 100_000
        yield Hit(place, message, f'Set "{key}" to {wanted}')
