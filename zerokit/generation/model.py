"""The model on disk: found, looked through, and its config and tokenizer read, before any rank loads it.

Loading under ZeRO-3 is collective, so an error halfway would leave ranks waiting for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.source import check_checkpoint, resolve_checkpoint, weight_files
from zerokit.errors import ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

    from zerokit.generation.options import Options

_WHERE = "--model"


@dataclass(frozen=True)
class ModelFiles:
    """A complete model folder, and what was read from it."""

    folder: Path
    config: PretrainedConfig
    defaults: GenerationConfig
    """The model's own sampling options."""
    tokenizer: PreTrainedTokenizerBase

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Tokens that prompt and completion may have together; None if the model sets no limit."""
        positions = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return int(positions) if positions else None


def find_model(options: Options) -> Path:
    """The local folder of the model, downloaded first if it is on the Hub.

    Raises:
        ModelError: there is none.
    """
    return resolve_checkpoint(
        options.model,
        where=_WHERE,
        revision=options.revision,
        remote_code=options.trust_remote_code,
    )


def read_model(folder: Path, options: Options) -> ModelFiles:
    """Read config and tokenizer, and check the headers of the weights against the config.

    Raises:
        ModelError: a file is missing or malformed, the model generates no text, or the weights do not
            belong to the config.
    """
    check_checkpoint(folder, where=_WHERE)
    config = _read_config(folder, options.trust_remote_code)
    _check_shapes(folder, config, options.trust_remote_code)
    return ModelFiles(
        folder=folder,
        config=config,
        defaults=_read_defaults(folder, config),
        tokenizer=_read_tokenizer(folder, options.trust_remote_code),
    )


def _read_config(folder: Path, trust_remote_code: bool) -> PretrainedConfig:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        # Wrong types, unknown architectures and missing code each have an exception of their own.
        raise ModelError(
            f"{folder / 'config.json'}: {reason(error)}", where=_WHERE, hint="Check the model folder"
        ) from error
    remote = trust_remote_code and "AutoModelForCausalLM" in getattr(config, "auto_map", {})
    if type(config) not in AutoModelForCausalLM._model_mapping and not remote:
        raise ModelError(
            f"'{config.model_type}' is not a causal language model",
            where=_WHERE,
            hint="Choose a model for text generation",
        )
    return config


def _read_defaults(folder: Path, config: PretrainedConfig) -> GenerationConfig:
    from transformers import GenerationConfig

    if not (folder / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelError(
            f"{folder / 'generation_config.json'}: {reason(error)}", where=_WHERE, hint="Mend or remove it"
        ) from error


def _read_tokenizer(folder: Path, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if not any((folder / name).is_file() for name in names):
        # transformers would make up an empty one for some architectures.
        raise ModelError(
            f"'{folder}' has no tokenizer", where=_WHERE, hint="Copy tokenizer.json and the like into it"
        )
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(
            f"no tokenizer can be loaded from '{folder}': {reason(error)}",
            where=_WHERE,
            hint="Copy it again from the model it belongs to",
        ) from error


def _check_shapes(folder: Path, config: PretrainedConfig, trust_remote_code: bool) -> None:
    """Refuse weights of other shapes than the config says, on which rank 0 alone would stop.

    Only tensors of the same name are compared: transformers renames some while it loads.
    """
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    if getattr(config, "quantization_config", None) is not None:
        return  # stored in shapes of their own
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:
        # A config with numbers that do not go together, or remote code with errors of its own.
        raise ModelError(
            f"{folder / 'config.json'}: no model can be built from it ({reason(error)})",
            where=_WHERE,
            hint="Check the model folder",
        ) from error
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    for file in weight_files(folder, where=_WHERE):
        with safe_open(file, framework="np") as tensors:
            for name in sorted(expected.keys() & set(tensors.keys())):
                shape = tensors.get_slice(name).get_shape()
                if shape != expected[name]:
                    raise ModelError(
                        f"{file}: '{name}' has shape {shape}, but by config.json it is {expected[name]}",
                        where=_WHERE,
                        hint="Copy config and weights from the same model",
                    )


def reason(error: Exception) -> str:
    """The first line of a library's message, or the name of the exception if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
