"""Finds and checks a model, its config and tokenizer, before any rank loads it.

Loading under ZeRO-3 is collective, so an error halfway would leave ranks waiting for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.pretrained import check_shapes, read_config, read_tokenizer, reason
from zerokit.checkpoint.source import check_checkpoint, resolve_checkpoint
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
    num_parameters: int | None
    """None for a quantized model."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.config.get_text_config(decoder=True).vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Tokens that prompt and completion may have together; None if the model sets no limit."""
        positions = getattr(self.config.get_text_config(decoder=True), "max_position_embeddings", None)
        return int(positions) if positions else None


def find_model(options: Options) -> Path:
    """The local folder of the model, downloaded if it is on the Hub. Raises ModelError."""
    return resolve_checkpoint(
        options.model, where=_WHERE, revision=options.revision, remote_code=options.trust_remote_code
    )


def read_model(folder: Path, options: Options) -> ModelFiles:
    """Read config and tokenizer, and check the headers of the weights. Raises ModelError."""
    check_checkpoint(folder, where=_WHERE)
    remote = options.trust_remote_code
    config = read_config(folder, where=_WHERE, trust_remote_code=remote)
    num_parameters = check_shapes(folder, config, where=_WHERE, trust_remote_code=remote)
    return ModelFiles(
        folder=folder,
        config=config,
        defaults=_read_defaults(folder, config),
        tokenizer=read_tokenizer(folder, where=_WHERE, trust_remote_code=remote),
        num_parameters=num_parameters,
    )


def _read_defaults(folder: Path, config: PretrainedConfig) -> GenerationConfig:
    from transformers import GenerationConfig

    if not (folder / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(folder)
    except Exception as error:
        raise ModelError(
            f"{folder / 'generation_config.json'}: {reason(error)}", where=_WHERE, hint="Fix or remove it"
        ) from error
