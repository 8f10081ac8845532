"""The model of a run: its config checked on the host, its weights made or loaded on all ranks.

Under ZeRO-3 the parameters are partitioned while the model is built, which every rank does together. So
:func:`prepare_model` finds all errors of bad input before :func:`build_model`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import CAUSAL_LM, ModelKind, check_shapes, load_weights, read_config
from zerokit.checkpoint.source import check_checkpoint, read_model_config, resolve_checkpoint
from zerokit.config.base import AUTO, ZERO
from zerokit.distributed.leaf_modules import calls_some, set_leaf_modules
from zerokit.errors import ConfigError, ModelError, RecipeError, did_you_mean, raise_together
from zerokit.models import load_model_shape
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import ModelSection
from zerokit.resolving.filled_keys import SIZE_RULES
from zerokit.training.arguments import ds_config_place

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from zerokit.training.tasks.task import Task


@dataclass(frozen=True)
class PreparedModel:
    """What is needed to build the model, checked."""

    config: PretrainedConfig
    folder: Path | None
    """The checkpoint to load; None to start from scratch."""


def find_checkpoint(section: ModelSection, where: str) -> Path | None:
    """The local folder of the checkpoint to start from, downloaded if needed. Raises ModelError."""
    if section.path is None:
        return None
    folder = resolve_checkpoint(
        section.path, where=where, revision=section.revision, remote_code=section.trust_remote_code
    )
    check_checkpoint(folder, where=where)
    return folder


def prepare_model(
    loaded: LoadedRecipe, folder: Path | None, tokenizer: PreTrainedTokenizerBase, task: Task
) -> PreparedModel:
    """Make the model's config and check that model, tokenizer and sequence length fit together.

    Raises:
        ModelError: an unknown architecture or key, or a vocabulary smaller than the tokenizer's.
        RecipeError: ``task.seq_len`` exceeds the model's positions.
    """
    section = loaded.recipe.model
    if folder is not None:
        where, remote = loaded.where("model", "path"), section.trust_remote_code
        options: dict[str, Any] = {"where": where, "trust_remote_code": remote, "kind": task.model}
        config = read_config(folder, **options, **task.config_keys())
        check_shapes(folder, config, **options)
    else:
        config = _config_from_scratch(loaded, tokenizer, task)
    task.complete(config, tokenizer)
    if config.get_text_config(decoder=True).vocab_size < len(tokenizer):
        raise ModelError(
            f"the model has {config.get_text_config(decoder=True).vocab_size} embeddings, the tokenizer "
            f"{len(tokenizer)} tokens",
            where=loaded.where("model", "tokenizer"),
            hint="Use the tokenizer that belongs to the model",
        )
    seq_len = loaded.recipe.task.seq_len
    positions = positions_of(config, seq_len, section, task.model)
    if positions is not None and seq_len > positions:
        raise RecipeError(
            f"sequences of {seq_len} tokens, but the model has {positions} positions",
            where=loaded.where("task", "seq_len"),
            hint=f"Set task.seq_len to at most {positions}",
        )
    return PreparedModel(config, folder)


def check_checkpointing(
    training: Mapping[str, Any], loaded: LoadedRecipe, config: PretrainedConfig, task: Task
) -> None:
    """Refuse activation checkpointing for a model class that does not support it (RecipeError)."""
    made = class_of(config, loaded.recipe.model, task.model)
    for name in ("gradient_checkpointing", "activation_checkpointing"):
        if training.get(name) is True and not getattr(made, "supports_gradient_checkpointing", True):
            raise RecipeError(
                f"{made.__name__} cannot compute activations again",
                where=loaded.where("training", name),
                hint=f"Set training.{name} to false",
            )


def mlps_to_tile(training: Mapping[str, Any], loaded: LoadedRecipe, config: PretrainedConfig) -> tuple[str, ...]:
    """The modules that hold the MLP of a layer (`ModelShape.mlp_modules`). RecipeError if there are none."""
    where = loaded.where("training", "tiled_mlp")
    for name in ("use_liger_kernel", "torch_compile"):
        if training.get(name):
            raise RecipeError(f"does not go with training.{name}", where=where, hint="Set one of them to false")
    shape = load_model_shape(config.to_dict(), allow_network=False)
    if not shape.mlp_modules:
        why = "has mixture-of-experts layers" if shape.is_moe else "has no module that is the MLP of a layer"
        raise RecipeError(f"{shape.architecture} {why}", where=where, hint="Set training.tiled_mlp to false")
    return shape.mlp_modules


def check_sizes(ds_config: Mapping[str, Any], loaded: LoadedRecipe, config: PretrainedConfig) -> None:
    """Refuse "auto" sizes if the model's config has no hidden size to compute them from (ConfigError)."""
    for found in (config, getattr(config, "text_config", None)):
        if hasattr(found, "hidden_size") or hasattr(found, "hidden_sizes"):
            return
    for key in SIZE_RULES:
        if ds_config.get(ZERO, {}).get(key) == AUTO:
            raise ConfigError(
                f"the Trainer finds no hidden size in the config of {config.model_type}, from which it fills '{key}'",
                where=ds_config_place(loaded, (ZERO, key)),
                hint=f"Write numbers for {', '.join(SIZE_RULES)}, such as 5e7, 5e7 and 1e5",
            )


def class_of(config: PretrainedConfig, section: ModelSection, kind: ModelKind) -> Any:
    """The class that transformers has for a config; None if the checkpoint's own code replaces it."""
    known = kind.auto._model_mapping
    if type(config) not in known or (section.trust_remote_code and hasattr(config, "auto_map")):
        return None
    return known[type(config)]


def positions_of(config: PretrainedConfig, seq_len: int, section: ModelSection, kind: ModelKind) -> int | None:
    """Most tokens of a sequence; None if the config sets no limit.

    Models like RoBERTa count positions from the id of the padding token plus one. The padding row of their
    position embeddings shows that.
    """
    positions: int | None = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    padding = getattr(config, "pad_token_id", None)
    if positions is None or padding is None or seq_len <= positions - padding - 1:
        return positions
    for name, module in _on_meta(config, section.trust_remote_code, kind).named_modules():
        row = getattr(module, "padding_idx", None)
        if row is not None and "position" in name and len(getattr(module, "weight", ())) == positions:
            return positions - int(row) - 1
    return positions


def generation_config(
    loaded: LoadedRecipe, folder: Path | None, tokenizer: PreTrainedTokenizerBase, task: Task, model: PreparedModel
) -> GenerationConfig | None:
    """The checkpoint's generation config with the recipe's keys (RecipeError); None without generation."""
    if not task.generates:
        return None
    from transformers import GenerationConfig

    from zerokit.generation.sampling import known_names

    keys = loaded.recipe.generation
    raise_together(
        RecipeError(
            f"'{name}' is not a GenerationConfig key",
            where=loaded.where("generation", name),
            hint=did_you_mean(name, known_names()),
        )
        for name in keys
        if name not in known_names()
    )
    tokens = ("bos_token_id", "eos_token_id", "pad_token_id")
    defaults = {name: getattr(tokenizer, name) for name in tokens}
    defaults["decoder_start_token_id"] = getattr(model.config, "decoder_start_token_id", None)
    try:
        if folder is not None and (folder / "generation_config.json").is_file():
            # As it was read: transformers saves what is not valid, such as a temperature without sampling, of
            # a checkpoint that came with it, and of nobody else.
            config = GenerationConfig.from_pretrained(folder)
            config.update(**keys)
        else:
            config = GenerationConfig.from_dict({**defaults, **keys})
        if keys and loaded.recipe.peft is None:  # beside an adapter it is not saved
            config.validate(strict=True)
        return config
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(
            f"transformers refuses it: {error}", where=loaded.where("generation"), hint="Change the value"
        ) from error


def weights_dtype(section: ModelSection, precision: str) -> torch.dtype:
    """The type of the weights when they are loaded: that of the recipe, else that of the precision."""
    import torch

    by_precision = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    return getattr(torch, section.dtype) if section.dtype else by_precision[precision]


def build_model(
    prepared: PreparedModel, section: ModelSection, dtype: torch.dtype, kind: ModelKind = CAUSAL_LM, **more: Any
) -> PreTrainedModel:
    """Build the model on all ranks together; under ZeRO-3 each keeps its share of the parameters.

    TrainingArguments (or an HfDeepSpeedConfig) must exist: through them transformers knows about ZeRO-3.
    ModelError on every rank if the checkpoint lacks weights.
    """
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": section.trust_remote_code}
    if section.attn_implementation is not None:
        options["attn_implementation"] = section.attn_implementation
    if prepared.folder is None:
        return kind.auto.from_config(prepared.config, **options)
    return load_weights(prepared.folder, prepared.config, where=str(prepared.folder), kind=kind, **options, **more)


def switch_dropout_off(model: torch.nn.Module) -> None:
    """Switch off dropout in the modules of a model; its config keeps the rates that are saved."""
    from torch.nn.modules.dropout import _DropoutNd

    for module in model.modules():
        # Most architectures keep a rate as a number of their own, beside torch's modules.
        rate = "p" if isinstance(module, _DropoutNd) else "drop"
        of_module = vars(module)
        of_module.update({name: 0.0 for name, value in of_module.items() if isinstance(value, float) and rate in name})


def _on_meta(config: PretrainedConfig, trust_remote_code: bool, kind: ModelKind) -> PreTrainedModel:
    import torch

    with torch.device("meta"):
        return kind.auto.from_config(config, trust_remote_code=trust_remote_code)


def _config_from_scratch(loaded: LoadedRecipe, tokenizer: PreTrainedTokenizerBase, task: Task) -> PretrainedConfig:
    from transformers import AutoConfig

    where = loaded.where("model", "from_config")
    source = loaded.recipe.model.from_config
    if isinstance(source, str):
        keys = dict(read_model_config(Path(source).expanduser(), where=where).data)
    else:
        keys = dict(source or {})
    model_type = keys.pop("model_type", None)
    if model_type is None:
        raise ModelError("has no 'model_type'", where=where, hint="Add it, such as 'llama'")
    known = _known_keys(str(model_type), where, task.model)
    for key in keys:
        # A config.json may carry keys of other versions; what a person writes inline may not.
        if key not in known and not isinstance(source, str):
            raise ModelError(
                f"'{key}' is not a key of a {model_type} config",
                where=loaded.where("model", "from_config", key),
                hint=did_you_mean(key, known),
            )
    keys.setdefault("vocab_size", len(tokenizer))
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        keys.setdefault(name, getattr(tokenizer, name))
    keys |= task.config_keys()
    try:
        config = AutoConfig.for_model(model_type, **keys)
        _check_heads(config.get_text_config(decoder=True))
        # On the meta device: what the config lets through may still not be a model.
        _on_meta(config, trust_remote_code=False, kind=task.model)
    except Exception as error:
        # Each architecture checks its own sizes, with exceptions of its own.
        reason = str(error) if " " in str(error) else f"{type(error).__name__}: {error}"
        raise ModelError(
            f"no {model_type} can be made from it: {reason}", where=where, hint="Correct the values"
        ) from error
    return config


def _check_heads(config: PretrainedConfig) -> None:
    """Find what only the first forward pass would."""
    # Not getattr: a config whose layers differ refuses to be asked for one value.
    names = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {name: vars(config).get(config.attribute_map.get(name, name)) for name in names}
    for name in names:
        if isinstance(sizes[name], int) and sizes[name] < 1:
            raise ValueError(f"{name} is {sizes[name]}")
    heads, groups = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
        raise ValueError(f"num_attention_heads ({heads}) is not a multiple of num_key_value_heads ({groups})")


def _known_keys(model_type: str, where: str, kind: ModelKind) -> set[str]:
    from transformers import CONFIG_MAPPING

    of_its_kind = {config.model_type for config in kind.auto._model_mapping}
    if model_type not in of_its_kind:
        raise ModelError(
            f"'{model_type}' is not {kind.noun} of transformers",
            where=where,
            hint=did_you_mean(model_type, sorted(of_its_kind)),
        )
    config = CONFIG_MAPPING[model_type]
    fields = {field.name for field in dataclasses.fields(config)}
    with contextlib.suppress(Exception):  # one architecture has no default values; its fields must do
        fields |= set(config().to_dict())
    # Other names of the same keys: gpt2 has n_embd for hidden_size.
    return fields | set(config.attribute_map)


def call_same_modules(model: torch.nn.Module, stage: int, where: str, note: Callable[[str], None] | None) -> None:
    """Make all ranks call the same modules: experts become ZeRO-3 leaves, layerdrop 0. ConfigError."""
    check_experts(model, stage, where)
    if set_leaf_modules(model) and note is not None:
        note("layerdrop is off: ranks would drop different layers")


def check_experts(model: torch.nn.Module, stage: int, where: str) -> None:
    """Refuse trained experts that are called one by one under ZeRO stages 1 and 2 (ConfigError).

    These stages exchange gradients in the order of each rank, and would silently mix up those of different
    experts.
    """
    for module in model.modules() if stage in (1, 2) else ():
        if calls_some(module) and any(parameter.requires_grad for parameter in module.parameters()):
            raise ConfigError(
                f"{type(module).__name__} calls experts one by one, by the tokens of a rank: under "
                f"ZeRO-{stage} ranks that call others would take gradients of one for those of another",
                where=where,
                hint="Train under ZeRO-3, which takes them as one, or an adapter that no expert has",
            )
