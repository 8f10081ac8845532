"""Adds the adapter of a recipe to a model: only its parameters are then trained."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from zerokit.errors import RecipeError, nearest, raise_together
from zerokit.recipe import LoadedRecipe
from zerokit.spelling import mistyped
from zerokit.training.peft.keys import VIRTUAL_TOKENS, PeftSettings, config_class
from zerokit.training.peft.prompts import drop_virtual_token_logits

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PretrainedConfig, PreTrainedModel, TrainingArguments

_NO_MODULE = "NoMatchingPeftModuleError"
"""peft's error if all named modules are left out; older releases lack it."""
_SAVED_ANYWAY = {"SEQ_CLS": ("classifier", "score"), "TOKEN_CLS": ("classifier", "score")}
"""Modules that peft adds to `modules_to_save` by itself, by the type of the task (peft_model.py)."""


def add_adapter(
    model: PreTrainedModel,
    settings: PeftSettings | None,
    loaded: LoadedRecipe,
    args: TrainingArguments,
    task_type: str | None,
) -> PreTrainedModel:
    """Freeze the model and add the adapter of the recipe. RecipeError if peft refuses it."""
    if settings is None:
        return model
    adapted = adapted_model(model, settings, loaded, task_type)
    if args.gradient_checkpointing:
        # The input of the first checkpointed block would need no gradient, and neither would its output.
        adapted.enable_input_require_grads()
    if settings.method.tokens == "embedded" and task_type in ("CAUSAL_LM", "TOKEN_CLS"):
        adapted.register_forward_hook(drop_virtual_token_logits, with_kwargs=True)
    return adapted


def adapted_model(
    model: PreTrainedModel, settings: PeftSettings, loaded: LoadedRecipe, task_type: str | None
) -> PeftModel:
    """The model with an adapter; RecipeError as of :func:`add_adapter`."""
    from peft import get_peft_model

    check_targets(model, settings, loaded)
    keys = {"task_type": task_type, **_defaults(settings, loaded, model), **settings.keys}
    # What was made anew is trained whole and saved with the adapter: no checkpoint has it.
    whole = [*(keys.get("modules_to_save") or ()), *getattr(model, "new_modules", ())]
    anyway = _SAVED_ANYWAY.get(keys["task_type"] or "", ())
    if outermost := [name for name in whole if not _is_below(name, (*whole, *anyway))]:
        keys["modules_to_save"] = outermost
    if is_all_linear(keys.get("target_modules")) and (unfit := unfit_layers(model)):
        keys["exclude_modules"] = _add_excluded(keys.get("exclude_modules"), unfit)
    try:
        return get_peft_model(model, config_class(settings.type_)(**keys))
    except (ValueError, TypeError, NotImplementedError, RuntimeError, re.error) as error:
        if type(error).__name__ == _NO_MODULE:
            raise RecipeError(
                f"{settings.method.noun}: no module is left to adapt",
                where=loaded.where("peft", "target_modules"),
                hint="See which ones exclude_modules, modules_to_save or layers_to_transform leave out",
            ) from error
        reason = " ".join(str(error).split())
        raise RecipeError(
            f"{settings.method.noun}: {reason}", where=loaded.where("peft"), hint="Correct the keys"
        ) from error


def _is_below(name: str, others: Sequence[str]) -> bool:
    """Whether a module is inside one that is saved, so that peft would look for it twice."""
    parts = name.split(".")
    outer = [".".join(parts[:count]) for count in range(1, len(parts))]
    return any(module.endswith(other) for module in outer for other in others)  # as peft finds them


def _defaults(settings: PeftSettings, loaded: LoadedRecipe, model: PreTrainedModel) -> dict[str, Any]:
    """Keys that the recipe does not set, and whose defaults in peft are missing or wrong."""
    if settings.method.tokens is None:
        return _default_targets(settings, model)
    text = model.config.get_text_config(decoder=True)
    sizes = {
        "num_layers": getattr(text, "num_hidden_layers", 1),
        "num_attention_heads": getattr(text, "num_attention_heads", 1),
    }
    found: dict[str, Any] = {"num_virtual_tokens": VIRTUAL_TOKENS}
    if settings.method.tokens == "cached":
        return found | sizes | _of_decoder(model.config)
    # Not always the hidden size: ALBERT and ELECTRA widen their embeddings afterwards.
    found |= sizes | {"token_dim": model.get_input_embeddings().embedding_dim}
    if settings.type_ == "prompt_tuning":
        section = loaded.recipe.model
        named = section.tokenizer if isinstance(section.tokenizer, str) else section.path
        # Words of the vocabulary: better than random numbers (Lester et al. 2021, section 3.2).
        found |= (
            {"prompt_tuning_init": "TEXT", "tokenizer_name_or_path": named}
            if "prompt_tuning_init_text" in settings.keys
            else {"prompt_tuning_init": "SAMPLE_VOCAB"}
        )
    return found


def _of_decoder(config: PretrainedConfig) -> dict[str, Any]:
    """Sizes of a decoder's keys and values; peft uses those of the encoder."""
    heads = getattr(config, "decoder_attention_heads", None)
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    found = {"num_attention_heads": heads, "num_layers": layers}
    if getattr(config, "d_kv", None):  # T5's heads together are not always as wide as its hidden states
        found["token_dim"] = config.d_kv * config.num_attention_heads
    else:
        found["token_dim"] = config.get_text_config(decoder=True).hidden_size
    return {name: value for name, value in found.items() if value is not None}


def _add_excluded(excluded: str | Sequence[str] | None, unfit: list[str]) -> str | list[str]:
    """Excluded modules, as peft takes them (a pattern, or name endings), and more name endings."""
    if not excluded or isinstance(excluded, str):
        return f"{excluded}|{pattern_of(unfit)}" if excluded else pattern_of(unfit)
    return [*excluded, *unfit]


_HEADS = r".*(classifier|score)(\..*)?"
"""Modules that are trained whole."""


def _default_targets(settings: PeftSettings, model: PreTrainedModel) -> dict[str, Any]:
    """peft's targets for the type of model; all linear layers for unknown types."""
    from peft.utils import constants

    model_type, of_ia3 = model.config.model_type, settings.type_ == "ia3"
    known = (
        constants.TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING
        if of_ia3
        else constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    )
    found: dict[str, Any] = {}
    if not any(settings.keys.get(name) for name in ("target_modules", "target_parameters")):
        # An adapter on each: Dettmers et al. 2023, section 4.
        if settings.type_ == "qlora" or model_type not in known:
            found |= {"target_modules": "all-linear", "exclude_modules": _HEADS}
        else:
            # By name: peft 0.21 finds none for Mixtral where it is left to look them up.
            found["target_modules"] = known[model_type]
    if of_ia3 and model_type not in known:
        found["feedforward_modules"] = []
    return found


_ENDS = {"target_modules": r"(.*\.)?", "feedforward_modules": r"(.*\.)?", "modules_to_save": ".*"}
"""Keys with a list of name endings -> pattern for the part before. A string is a pattern of whole names.

``exclude_modules`` is not checked: it may name missing modules.
"""
_PATTERNS = ("rank_pattern", "alpha_pattern")
"""Keys with a mapping from patterns of name endings, of modules or parameters."""


@dataclass(frozen=True)
class _Names:
    """Names in a model."""

    modules: Collection[str]
    parameters: Collection[str]
    layers: list[str]
    """Last parts of the names of modules that have a matrix."""
    earlier: Collection[str]
    """Names in `target_modules` that peft converts to others."""


def is_all_linear(targets: Any) -> bool:
    """Whether `target_modules` are all linear layers, as peft reads it."""
    return isinstance(targets, str) and targets.lower() == "all-linear"


def check_targets(model: PreTrainedModel, settings: PeftSettings, loaded: LoadedRecipe) -> None:
    """Refuse names if none exists, or if one is clearly mistyped (RecipeError): lists are often shared."""
    modules = dict(model.named_modules(remove_duplicate=False))
    layers = sorted({name.rpartition(".")[2] for name, layer in modules.items() if _has_matrix(layer)})
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    names = _Names(modules, parameters, layers, _earlier_names(model, settings))
    raise_together(
        RecipeError(message, where=loaded.where("peft", key), hint=hint)
        for key in (*_ENDS, *_PATTERNS)
        if settings.keys.get(key)
        for message, hint in _unknown(key, settings.keys[key], names)
    )


def _earlier_names(model: PreTrainedModel, settings: PeftSettings) -> Collection[str]:
    """Names in `target_modules` that peft itself converts to names of parameters.

    transformers 5 keeps the experts of a layer in one parameter; for known types of models peft still accepts
    the names of their former layers.
    """
    targets = settings.keys.get("target_modules")
    if not targets or settings.method.config != "LoraConfig":
        return ()
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # a release that takes all names as they are
        return ()
    config = config_class(settings.type_)(target_modules=targets)
    try:
        convert_peft_config_for_transformers(config, model, None)
    except re.error:
        return ()
    except ValueError:  # some of the layers that are one parameter now: peft says which are missing
        return [targets] if isinstance(targets, str) else targets
    left: Any = config.target_modules
    if isinstance(targets, str):
        return () if left == targets else [targets]
    return [name for name in targets if name not in left]


def _unknown(key: str, value: Any, names: _Names) -> Iterator[tuple[str, str]]:
    """Problem and hint for each name that matches nothing."""
    if isinstance(value, str):
        if (key == "target_modules" and is_all_linear(value)) or value in names.earlier:
            return
        if not _matches(value, names.modules):
            ends = any(name.endswith(f".{value}") for name in names.modules)
            hint = f"Write [{value}], a list of ends of names" if ends else _instead(value, names)
            yield f"no module's whole name is as the pattern '{value}' says", hint
        return
    unknown = [name for name in map(str, value) if not _is_known(key, name, names)]
    for name in unknown:
        meant = mistyped(name.rpartition(".")[2], names.layers)
        # A list may name layers of several models, such as o_proj and q_proj.
        if len(unknown) == len(value) or (meant is not None and meant not in value):
            yield f"the model has no module '{name}'", _instead(name, names)


def _is_known(key: str, name: str, names: _Names) -> bool:
    if key in _PATTERNS:
        return _matches(rf"(.*\.)?({name})", (*names.modules, *names.parameters))
    return name in names.earlier or _matches(_ENDS[key] + re.escape(name), names.modules)


def _matches(pattern: str, known: Collection[str]) -> bool:
    try:
        return any(re.fullmatch(pattern, name) for name in known)
    except re.error:  # as peft would, of which it says more
        return True


def _instead(name: str, names: _Names) -> str:
    """A hint that names a layer of the model, or those that there are."""
    if any(f".{parameter}".endswith(f".{name}") for parameter in names.parameters):
        return "It is a parameter, which LoRA takes in target_parameters"
    close = nearest(name.rpartition(".")[2], names.layers)
    return f"Did you mean '{close}'?" if close else f"Its layers are {', '.join(names.layers[:16])}"


def _has_matrix(layer: Any) -> bool:
    weight = getattr(layer, "weight", None)
    shape = getattr(weight, "ds_shape", getattr(weight, "shape", ()))  # under ZeRO-3 a rank has no matrix
    return len(shape) > 1


_OF_MODELS = ("transformers", "transformers_modules")
"""Packages with code of models; peft handles layers of other packages, such as quantized ones."""
_READS_WEIGHT = re.compile(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape|size|is_\w+)|\s*=[^=])")


def unfit_layers(model: PreTrainedModel) -> list[str]:
    """Linear layers that cannot have an adapter: the last two parts of their names, sorted
    (``mixer.out_proj``).

    They return more than a tensor, such as routers of Llama 4, or are not called because the surrounding code
    uses their weights, such as Mamba's kernels. peft refuses some of them, for some types of models.
    """
    found = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if not _is_plain(module):
                found.add(name)
        elif _is_of_models(module):
            kind: Any = type(module)
            found.update(f"{name}.{child}" for child in _read_by(kind) if _is_linear(module, child))
    return sorted({".".join(name.split(".")[-2:]) for name in found})


def pattern_of(names: list[str]) -> str:
    """A pattern for modules with these name endings and all modules below, as peft matches whole names."""
    return rf"(.*\.)?({'|'.join(map(re.escape, names))})(\..*)?"


def _is_of_models(module: nn.Module) -> bool:
    return type(module).__module__.split(".")[0] in _OF_MODELS


def _is_linear(module: nn.Module, child: str) -> bool:
    return isinstance(getattr(module, child, None), nn.Linear)


@cache
def _read_by(kind: Any) -> frozenset[str]:
    """Attributes whose weight the code of a class reads directly."""
    return frozenset(
        match[1]
        for name, source in _methods(kind)
        if not name.startswith("__") and "init" not in name and "tie" not in name
        for match in _READS_WEIGHT.finditer(source)
    )


def _methods(kind: Any) -> Iterator[tuple[str, str]]:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        if method.__module__.split(".")[0] in _OF_MODELS:
            try:
                yield name, inspect.getsource(method)
            except (OSError, TypeError):  # made without a file
                continue


def _is_plain(module: nn.Linear) -> bool:
    """Whether it returns one tensor, as peft expects."""
    if type(module).forward is nn.Linear.forward or not _is_of_models(module):
        return True
    # Without values: under ZeRO-3 a rank has none of most parameters.
    empty = {
        name: torch.empty(getattr(parameter, "ds_shape", parameter.shape), device="meta")
        for name, parameter in module.named_parameters(recurse=False)
    }
    try:
        given = torch.func.functional_call(module, empty, (torch.empty(1, 1, module.in_features, device="meta"),))
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return False
    return isinstance(given, torch.Tensor)
