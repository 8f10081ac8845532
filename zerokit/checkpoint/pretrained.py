"""Reads config and tokenizer of a pretrained model, and compares them with its weights before ranks load
them."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.source import check_files, weight_files
from zerokit.distributed.run_policy import RunPolicy
from zerokit.errors import ModelError
from zerokit.patches import Patch, wrap

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelKind:
    """A kind of model: one of transformers' Auto classes."""

    auto_class: str
    noun: str
    such_as: str
    """A well-known example."""
    new_head: bool = True
    """Whether a checkpoint may lack the head, which is then initialised."""

    @property
    def auto(self) -> Any:
        """The class."""
        import transformers

        return getattr(transformers, self.auto_class)


CAUSAL_LM = ModelKind("AutoModelForCausalLM", "a causal language model", "Llama", new_head=False)
SEQ2SEQ = ModelKind("AutoModelForSeq2SeqLM", "a sequence-to-sequence model", "T5", new_head=False)

_HEADS_WITHOUT_WORDS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Ends of class names whose head predicts no tokens."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


def read_config(
    folder: Path, *, where: str, trust_remote_code: bool = False, kind: ModelKind = CAUSAL_LM, **keys: Any
) -> PretrainedConfig:
    """Read the config of a model of a kind; `keys` override its own.

    Raises:
        ModelError: transformers cannot read it, or it is another kind of model.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, **keys)
    except Exception as error:
        # Wrong types, unknown architectures and missing code raise different exceptions.
        raise ModelError(
            f"{folder / 'config.json'}: {reason(error)}", where=where, hint="Check the model folder"
        ) from error
    architectures = getattr(config, "architectures", None) or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise ModelError(
            f"{folder / 'config.json'}: 'architectures' is {architectures!r}, not a list of names",
            where=where,
            hint="Check the model folder",
        )
    if not kind.new_head and architectures and architectures[0].endswith(_HEADS_WITHOUT_WORDS):
        raise ModelError(
            f"'{folder}' is a {architectures[0]}, not {kind.noun}",
            where=where,
            hint=f"Choose one such as {kind.such_as}; transformers' pipeline() runs this one",
        )
    remote = trust_remote_code and kind.auto_class in getattr(config, "auto_map", {})
    if type(config) not in kind.auto._model_mapping and not remote:
        raise ModelError(
            f"'{config.model_type}' is not {kind.noun}", where=where, hint=f"Choose one such as {kind.such_as}"
        )
    return config


def read_tokenizer(source: str | Path, *, where: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id. ModelError if there is none, or transformers cannot read it."""
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # For some architectures transformers would make an empty one.
        raise ModelError(f"'{folder}' has no tokenizer", where=where, hint="Copy tokenizer.json and the like into it")
    if folder.is_dir():
        check_files(folder, where=where)
    try:
        return AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    except Exception as error:
        # Missing files, unknown classes and malformed files raise different exceptions.
        raise ModelError(
            f"no tokenizer can be loaded from '{source}': {reason(error)}",
            where=where,
            hint="Copy it again from the model it belongs to",
        ) from error


def check_shapes(
    folder: Path, config: PretrainedConfig, *, where: str, trust_remote_code: bool = False, kind: ModelKind = CAUSAL_LM
) -> int | None:
    """Refuse weights whose shapes differ from the config; only rank 0 would notice them.

    Only tensors of the same name are compared, because transformers renames some while loading.

    Returns:
        number of parameters; None for a quantized model, whose shapes are its own.

    Raises:
        ModelError: no model can be built from the config, a weight has another shape, or the head has another
            number of classes.
    """
    import torch
    from safetensors import safe_open

    if getattr(config, "quantization_config", None) is not None:
        return None
    try:
        with torch.device("meta"):
            model: Any = kind.auto.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:
        # Inconsistent sizes, or errors of remote code.
        raise ModelError(
            f"{folder / 'config.json'}: no model can be built from it ({reason(error)})",
            where=where,
            hint="Check the model folder",
        ) from error
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in weight_files(folder, where=where) if RunPolicy.current().reads_weights else []:
        with safe_open(file, framework="np") as tensors:
            for name in sorted(expected.keys() & set(tensors.keys())):
                shape = tensors.get_slice(name).get_shape()
                if shape == expected[name]:
                    continue
                is_of_head = kind.new_head and _is_of_head(name, model.base_model_prefix)
                if is_of_head and [config.num_labels, *shape[1:]] == expected[name]:
                    raise ModelError(
                        f"'{folder}' has a head for {shape[0]} classes, and there are {config.num_labels}",
                        where=where,
                        hint="Train on its classes, or start from its base model: a missing head is initialised",
                    )
                raise ModelError(
                    f"{file}: '{name}' has shape {shape}, but config.json gives {expected[name]}",
                    where=where,
                    hint="Copy config and weights from the same model",
                )
    return int(model.num_parameters())


def load_weights(
    folder: Path,
    config: PretrainedConfig,
    *,
    dtype: torch.dtype,
    where: str,
    trust_remote_code: bool = False,
    kind: ModelKind = CAUSAL_LM,
    **options: Any,
) -> PreTrainedModel:
    """Load a checked model; under ZeRO-3 all ranks load together, and each keeps its shard.

    The attribute ``new_modules`` of the model names newly initialised modules, if the kind allows them.

    Args:
        where: place of the model in the user's input, for errors.
        kind: of the model; transformers initialises a missing head.

    Raises:
        ModelError: weights are missing; the same on every rank.
    """
    leave_loaded_modules()
    model, report = kind.auto.from_pretrained(
        folder,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        **options,
    )
    missing = sorted(report["missing_keys"])
    if kind.new_head:
        model.new_modules = tuple(sorted({name.rpartition(".")[0] for name in missing}))
        missing = [name for name in missing if not _is_of_head(name, model.base_model_prefix)]
    if missing:
        # transformers would initialise them randomly.
        raise ModelError(
            f"'{folder}' lacks {len(missing)} of the model's weights, such as '{missing[0]}'",
            where=where,
            hint="Copy the whole checkpoint; merge an adapter into its model first",
        )
    return model


ERRORS_OF_PEFT = (RuntimeError, ValueError, TypeError, KeyError, AttributeError)
"""What loading and merging raise: each kind of adapter has its own."""


def load_adapter(model: Any, adapter: Path) -> Any:
    """The model with an adapter of peft in its layers.

    Raises:
        ModelError: the adapter does not fit the model; the same on every rank.
    """
    from peft import PeftModel
    from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING

    base = model.config.name_or_path
    hint = "Check that it belongs to this model"
    missing: set[str] = set()
    unexpected: list[str] = []

    def keep(_: Any, keys: Any) -> None:
        missing.update(keys.missing_keys)
        unexpected.extend(keys.unexpected_keys)

    hook = model.register_load_state_dict_post_hook(keep)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found missing adapter keys")  # an error below
            adapted = PeftModel.from_pretrained(model, str(adapter), autocast_adapter_dtype=False)
    except ERRORS_OF_PEFT as error:
        problem = f"peft cannot load it on '{base}': {reason(error)}"
        raise ModelError(problem, where=adapter, hint=hint) from error
    finally:
        hook.remove()
    config = adapted.peft_config["default"]
    if config.is_prompt_learning:  # learned tokens are no part of the model, and peft checks them
        return adapted
    tensors = dict(adapted.named_parameters(remove_duplicate=False))
    # Some kinds save buffers that peft makes again, under names that it does not load in each version.
    buffers = {name.replace(".default", "") for name, _ in adapted.named_buffers(remove_duplicate=False)}
    if others := [name for name in unexpected if name.replace(".default", "") not in buffers]:
        raise ModelError(f"has '{others[0]}', which '{base}' lacks", where=adapter, hint=hint)
    loaded = {id(tensor) for name, tensor in tensors.items() if name not in missing}  # some have several names
    prefix = PEFT_TYPE_TO_PREFIX_MAPPING[config.peft_type]
    for name, tensor in tensors.items():
        if name in missing and prefix in name and "default" in name.split(".") and id(tensor) not in loaded:
            saved = name.replace(".default", "")
            raise ModelError(f"lacks '{saved}', which '{base}' needs", where=adapter, hint=hint)
    return adapted


def _is_of_head(name: str, body: str) -> bool:
    """Whether a weight belongs to the head, or to the pooler, which some models lack."""
    return not name.startswith(f"{body}.") or "pooler" in name.split(".")


def reason(error: Exception) -> str:
    """The first line of a library's message, or the exception's name if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


_INITIALIZE = Patch(
    "transformers.modeling_utils:PreTrainedModel", "_initialize_weights", "leave modules alone that are loaded"
)


@functools.cache  # once a process
def leave_loaded_modules() -> None:
    """Have transformers initialise no module under ZeRO-3 if it has loaded all of its tensors.

    Once weights are loaded, `from_pretrained` initialises every module, and only functions that write a
    tensor skip loaded ones. Code that reads sizes first (Pegasus' positions, Funnel's embeddings) finds empty
    tensors under stage 3, because transformers gathers only tensors that were not loaded.
    """
    wrap(_INITIALIZE, _unless_loaded)


def _unless_loaded(initialize: Any, model: Any, module: torch.nn.Module, *more: Any, **given: Any) -> None:
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

    # This includes buffers that no checkpoint has, which must be made.
    tensors = [*module.parameters(), *module.buffers()]
    is_loaded = bool(tensors) and all(getattr(tensor, "_is_hf_initialized", False) for tensor in tensors)
    if not (is_loaded and is_deepspeed_zero3_enabled()):
        initialize(model, module, *more, **given)
