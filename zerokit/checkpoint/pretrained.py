"""Config and tokenizer of a checkpoint, read and held against its weights before any rank loads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.loaded_modules import leave_loaded_modules
from zerokit.checkpoint.source import check_files, weight_files
from zerokit.distributed.run_policy import RunPolicy
from zerokit.errors import ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelKind:
    """A kind of models by what they compute in the end: one of transformers' Auto classes."""

    auto_class: str
    noun: str
    such_as: str
    """One that everybody knows."""
    new_head: bool = True
    """Whether a checkpoint may come without the last layers, which are then made anew."""

    @property
    def auto(self) -> Any:
        """The class."""
        import transformers

        return getattr(transformers, self.auto_class)


CAUSAL_LM = ModelKind("AutoModelForCausalLM", "a causal language model", "Llama", new_head=False)

_HEADS_WITHOUT_WORDS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Ends of the names of transformers' classes whose last layer tells no token."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")


def read_config(
    folder: Path, *, where: str, trust_remote_code: bool = False, kind: ModelKind = CAUSAL_LM, **keys: Any
) -> PretrainedConfig:
    """The config of a model of a kind, with `keys` in place of its own.

    Raises:
        ModelError: transformers cannot read it, or it is of another kind of model.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code, **keys)
    except Exception as error:
        # Wrong types, unknown architectures and missing code each have an exception of their own.
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
            f"'{config.model_type}' is not {kind.noun}",
            where=where,
            hint=f"Choose one such as {kind.such_as}",
        )
    return config


def read_tokenizer(
    source: str | Path, *, where: str, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id.

    Raises:
        ModelError: there is none, or transformers cannot read it.
    """
    from transformers import AutoTokenizer

    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # transformers would make up an empty one for some architectures.
        raise ModelError(
            f"'{folder}' has no tokenizer", where=where, hint="Copy tokenizer.json and the like into it"
        )
    if folder.is_dir():
        check_files(folder, where=where)
    try:
        return AutoTokenizer.from_pretrained(str(source), trust_remote_code=trust_remote_code)
    except Exception as error:
        # Missing files, an unknown class, a malformed tokenizer.json: each has an exception of its own.
        raise ModelError(
            f"no tokenizer can be loaded from '{source}': {reason(error)}",
            where=where,
            hint="Copy it again from the model it belongs to",
        ) from error


def check_shapes(
    folder: Path,
    config: PretrainedConfig,
    *,
    where: str,
    trust_remote_code: bool = False,
    kind: ModelKind = CAUSAL_LM,
) -> None:
    """Refuse weights of other shapes than the config says, on which rank 0 alone would stop.

    Only tensors of the same name are compared: transformers renames some while it loads.

    Raises:
        ModelError: no model can be built from the config, a weight has another shape, or the head is for
            another number of classes.
    """
    import torch
    from safetensors import safe_open

    if getattr(config, "quantization_config", None) is not None:
        return  # stored in shapes of their own
    try:
        with torch.device("meta"):
            model: Any = kind.auto.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:
        # A config with numbers that do not go together, or remote code with errors of its own.
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
                        hint="Train on the classes that it has, or start from the model that it was made of: "
                        "a head is made anew where a checkpoint has none",
                    )
                raise ModelError(
                    f"{file}: '{name}' has shape {shape}, but by config.json it is {expected[name]}",
                    where=where,
                    hint="Copy config and weights from the same model",
                )


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
    """Load a checked checkpoint; under ZeRO-3 all ranks together, each keeping its share.

    The model's attribute ``new_modules`` names those that the checkpoint lacked, where it may lack some.

    Args:
        folder: the checkpoint.
        config: its config.
        dtype: of the weights as loaded.
        where: the place of the model in the user's input, for errors.
        trust_remote_code: whether code that comes with the model may run.
        kind: of the model; transformers makes a head anew that the checkpoint does not have.
        options: more of ``from_pretrained``'s.

    Raises:
        ModelError: weights of the model are missing; the same on every rank.
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
        # transformers would fill them with random numbers.
        raise ModelError(
            f"'{folder}' lacks {len(missing)} of the model's weights, such as '{missing[0]}'",
            where=where,
            hint="Copy the whole checkpoint; merge an adapter into its model first",
        )
    return model


def _is_of_head(name: str, body: str) -> bool:
    """Whether a weight is none of a model's body, or of the pooler at its end, which some lack."""
    return not name.startswith(f"{body}.") or "pooler" in name.split(".")


def reason(error: Exception) -> str:
    """The first line of a library's message, or the name of the exception if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
