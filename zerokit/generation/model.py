"""Finds and checks a model, its config and tokenizer, before any rank loads it.

Loading under ZeRO-3 is collective, so an error halfway would leave ranks waiting for each other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.adapter_names import LEARNED_TOKENS, WITH_PEFT, find_adapter, read_adapter
from zerokit.checkpoint.model_files import read_config as read_config_json
from zerokit.checkpoint.pretrained import (
    CAUSAL_LM,
    ERRORS_OF_PEFT,
    SEQ2SEQ,
    ModelKind,
    check_shapes,
    load_adapter,
    load_weights,
    read_config,
    read_tokenizer,
    reason,
)
from zerokit.checkpoint.source import (
    check_before_launch,
    check_checkpoint,
    check_files,
    check_weights,
    resolve_checkpoint,
)
from zerokit.errors import ModelError, printable
from zerokit.extras import require

if TYPE_CHECKING:
    import torch
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
    adapter: Path | None = None
    """A peft adapter on the model."""
    kind: ModelKind = CAUSAL_LM

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return int(self.config.get_text_config(decoder=True).vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Tokens that prompt and completion may have together; of an encoder-decoder, those that are generated.

        None if the model sets no limit.
        """
        return self._positions("decoder")

    @property
    def max_encoder_positions(self) -> int | None:
        """Tokens that the prompt of an encoder-decoder may have; None if the model sets no limit."""
        return self._positions("encoder")

    def _positions(self, half: str) -> int | None:
        config = getattr(self.config, half, self.config).get_text_config(decoder=True)
        names = ("max_position_embeddings", f"max_{half}_position_embeddings")
        return next((int(found) for name in names if (found := getattr(config, name, None))), None)


def check_quickly(options: Options) -> None:
    """Check the model's files before ranks start; of a Hub model only the config is fetched. Raises ModelError."""
    base, revision = _base_of(options)
    check_before_launch(base, where=_WHERE, revision=revision)


def find_model(options: Options) -> Path:
    """The local folder of the model or, for an adapter, of its base; downloaded if it is on the Hub.

    Raises:
        ModelError: it does not exist, or the adapter is unsupported.
    """
    base, revision = _base_of(options)
    return resolve_checkpoint(base, where=_WHERE, revision=revision, remote_code=options.trust_remote_code)


def read_model(folder: Path, options: Options) -> ModelFiles:
    """Read config and tokenizer, and check the headers of the weights. Raises ModelError."""
    check_checkpoint(folder, where=_WHERE)
    remote = options.trust_remote_code
    kind = SEQ2SEQ if read_config_json(folder / "config.json").get("is_encoder_decoder") else CAUSAL_LM
    config = read_config(folder, where=_WHERE, trust_remote_code=remote, kind=kind)
    num_parameters = check_shapes(folder, config, where=_WHERE, trust_remote_code=remote, kind=kind)
    adapter = find_adapter(options.model)
    source = adapter if adapter is not None and any(adapter.glob("tokenizer*")) else folder
    return ModelFiles(
        folder=folder,
        config=config,
        defaults=_read_defaults(folder, config),
        tokenizer=read_tokenizer(source, where=_WHERE, trust_remote_code=remote),
        num_parameters=num_parameters,
        adapter=adapter,
        kind=kind,
    )


def load_model(files: ModelFiles, dtype: torch.dtype, *, trust_remote_code: bool, merges: bool = False) -> Any:
    """The model with its adapter, if any, in its layers, or merged into its weights (`merges`).

    Under ZeRO-3 all ranks load together.

    Raises:
        ModelError: weights are missing, or the adapter does not fit; the same on every rank.
    """
    model: Any = load_weights(
        files.folder, files.config, dtype=dtype, where=_WHERE, trust_remote_code=trust_remote_code, kind=files.kind
    )
    if files.adapter is None:
        return model
    adapted = load_adapter(model, files.adapter)
    if not merges:
        return adapted.to(dtype).get_base_model()
    try:
        _untie_adapted(adapted.get_base_model())
        return adapted.merge_and_unload()
    except ERRORS_OF_PEFT as error:
        problem = f"peft cannot merge it into the weights, as --mode tensor needs: {reason(error)}"
        raise ModelError(problem, where=files.adapter, hint="Use another mode") from error


def _untie_adapted(model: Any) -> None:
    """Give each adapted layer a weight of its own: merging would change the layers that share it, too."""
    import torch
    from peft.tuners.tuners_utils import BaseTunerLayer

    uses = Counter(id(module._parameters.get("weight")) for module in model.modules())
    for layer in [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]:
        weight = layer._parameters.get("weight")
        if weight is not None and uses[id(weight)] > 1:
            layer.weight = torch.nn.Parameter(weight.detach().clone(), requires_grad=False)
            model.config.tie_word_embeddings = False


def _base_of(options: Options) -> tuple[str, str | None]:
    """The name and revision of the model or, for an adapter, which is checked, of its base."""
    if (adapter := find_adapter(options.model)) is None:
        return options.model, options.revision
    where = printable(adapter)
    check_files(adapter, where=where)
    check_weights(adapter, where=where)
    kind, base = read_adapter(adapter, hint="Write base_model_name_or_path into adapter_config.json")
    if kind in LEARNED_TOKENS:
        raise ModelError(f"has learned tokens ({kind}), which zerokit does not run", where=where, hint=WITH_PEFT)
    require("peft", where="an adapter")
    return base, None


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
