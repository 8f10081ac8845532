"""Whether a peft method and the ZeRO stage work with the model and the recipe, checked without weights."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from zerokit.config.base import ZERO
from zerokit.distributed.group import count_gpus
from zerokit.errors import RecipeError
from zerokit.generation import CACHE_NAMES
from zerokit.recipe import LoadedRecipe
from zerokit.resolving.contradictions import Resolved
from zerokit.training.model import PreparedModel, check_experts, positions_of
from zerokit.training.peft.adapter import adapted_model
from zerokit.training.peft.keys import PeftSettings

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from zerokit.training.tasks.task import Task

_OTHERS = "Choose peft.type lora or ia3"


def check_trained(
    loaded: LoadedRecipe,
    settings: PeftSettings | None,
    resolved: Resolved,
    model: PreparedModel,
    task: Task,
    num_ranks: int = 1,
) -> None:
    """Refuse an adapter that does not work with the model, the task or another key (RecipeError).

    The adapter is added to a model on the meta device, which is called if virtual tokens may not fit. Remote
    code that cannot be built there is not checked. ConfigError if several ranks cannot train the model in
    this ZeRO stage.
    """
    stage = int(resolved.ds_config[ZERO].get("stage", 0))
    in_order = num_ranks > 1 and stage in (1, 2)
    if settings is None and not in_order:
        return
    if settings is not None and settings.type_ == "qlora":
        check_four_bits(loaded, settings, resolved, model)
    base = _on_meta(loaded, model, task)
    if settings is not None and settings.method.tokens is not None:
        _check_tokens(loaded, settings, resolved.training, model, task, base)
    if base is None:
        return
    trained = base if settings is None else _try(loaded, settings, task, base)
    if in_order:
        check_experts(trained, stage, loaded.where("deepspeed"))


def _check_tokens(
    loaded: LoadedRecipe,
    settings: PeftSettings,
    training: Mapping[str, Any],
    model: PreparedModel,
    task: Task,
    base: PreTrainedModel | None,
) -> None:
    """Refuse virtual tokens that do not work with the task, the model or another key."""
    type_, where = loaded.recipe.task.type, loaded.where("peft", "type")
    noun, count = settings.method.noun, settings.num_virtual_tokens
    if task.peft_type is None:
        raise RecipeError(f"peft has no {noun} for {type_}", where=where, hint=_OTHERS)
    if settings.method.tokens == "cached":
        if training.get("gradient_checkpointing"):
            raise RecipeError(
                f"{noun} stores what it learns in the cache of keys and values, which checkpointing drops",
                where=loaded.where("training", "gradient_checkpointing"),
                hint="Set it to false, or choose another peft.type",
            )
        if base is not None and not _takes_cache(base):
            raise RecipeError(
                f"{noun} needs a cache of keys and values alone, which {base.config.model_type} has not",
                where=where,
                hint=_OTHERS,
            )
    elif type_ == "sequence_classification" and base is not None and finds_end_by_ids(base):
        # With embeddings in the place of ids, transformers takes the last token, which may be padding.
        raise RecipeError(
            f"{base.config.model_type} classifies by the last token, which it cannot find with {noun}",
            where=where,
            hint="Choose peft.type prefix_tuning, lora or ia3",
        )
    recipe = loaded.recipe
    in_decoder = type_ == "seq2seq" and settings.method.tokens == "cached"
    name, longest = ("target_len", recipe.task.target_len) if in_decoder else ("seq_len", recipe.task.seq_len)
    positions = positions_of(model.config, longest + count, recipe.model, task.model)
    if positions is not None and longest + count > positions:
        raise RecipeError(
            f"{longest} tokens and {count} learned ones before them, but the model has {positions} positions",
            where=loaded.where("task", name),
            hint=f"Set task.{name} to at most {positions - count}, or lower peft.num_virtual_tokens",
        )


def _takes_cache(base: PreTrainedModel) -> bool:
    """Whether a model accepts a cache of keys and values, and has no other state between tokens."""
    names = [set(inspect.signature(module.forward).parameters) for module in (base, base.base_model)]
    layers = set(getattr(base.config.get_text_config(decoder=True), "layer_types", None) or ())
    recurrent = any("attention" not in layer or "linear" in layer for layer in layers)
    return any(not name.isdisjoint(CACHE_NAMES) for name in names) and not base._is_stateful and not recurrent


def _on_meta(loaded: LoadedRecipe, model: PreparedModel, task: Task) -> PreTrainedModel | None:
    """The model without weights; None if its own code cannot make it."""
    from transformers.initialization import meta_device_safe_creation_ops

    options = {"trust_remote_code": loaded.recipe.model.trust_remote_code, "dtype": torch.bfloat16}
    base: PreTrainedModel
    try:  # in 16 bits: products of experts take no others there
        with torch.device("meta"), meta_device_safe_creation_ops():
            base = task.model.auto.from_config(copy.deepcopy(model.config), **options)
    except Exception:  # of each architecture its own; one that is never made says so when it is loaded
        return None
    return base.eval()


def _try(loaded: LoadedRecipe, settings: PeftSettings, task: Task, base: PreTrainedModel) -> PeftModel:
    """The model with its adapter, without weights."""
    # init_lora_weights may compute with weights.
    keys = {name: value for name, value in settings.keys.items() if name != "init_lora_weights"}
    works_alone = settings.method.tokens is not None and _problem(base, task) is None
    with torch.device("meta"):
        adapted = adapted_model(base, PeftSettings(settings.type_, keys, {}), loaded, task.peft_type)
    problem = _problem(adapted, task) if works_alone else None
    if problem is not None:
        raise RecipeError(
            f"{settings.method.noun} does not fit {base.config.model_type}: {problem}",
            where=loaded.where("peft"),
            hint=f"{_OTHERS}, or give token_dim, num_layers and num_attention_heads as the model has them",
        )
    return adapted


def _problem(model: Any, task: Task) -> str | None:
    """Why calling a model without weights fails; None if it works."""
    given = {"input_ids": torch.zeros(1, 2, dtype=torch.long, device="meta")}
    if task.peft_type == "SEQ_2_SEQ_LM":
        given["decoder_input_ids"] = given["input_ids"]
    try:
        with torch.no_grad(), torch.device("meta"):
            model(**given)
    except Exception as error:  # of each architecture its own
        return " ".join(str(error).split()) or type(error).__name__
    return None


def finds_end_by_ids(model: PreTrainedModel) -> bool:
    """Whether a classifier finds the last token of a text in its ids, as decoders and BART do.

    Reads the source of each ``forward`` of the class and its bases, and of the methods that they call.
    True if there is no source.
    """
    from transformers import PreTrainedModel

    bases = [base for base in type(model).__mro__ if not issubclass(PreTrainedModel, base)]
    pending = [vars(base)["forward"] for base in bases if "forward" in vars(base)]
    seen: list[Any] = []
    while pending:
        method = pending.pop()
        seen.append(method)
        try:
            source = inspect.getsource(method)
        except (OSError, TypeError):
            return True
        if _READS_END.search(source):
            return True
        for name in re.findall(r"self\.(\w+)\(", source):
            called = next((vars(base)[name] for base in bases if name in vars(base)), None)
            if inspect.isroutine(called) and called not in seen:
                pending.append(called)
    return False


_READS_END = re.compile(
    r"(?:pad|eos)_token_id|input_ids\s*[!=]=|input_ids\.(?:eq|ne|not_equal)\(|\.(?:eq|ne)\(input_ids"
)


def check_four_bits(loaded: LoadedRecipe, settings: PeftSettings, resolved: Resolved, model: PreparedModel) -> None:
    """Refuse a run whose model cannot be kept in 4 bits (RecipeError)."""
    where = loaded.where("peft", "type")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RecipeError(
            "qlora needs bitsandbytes, which is not installed", where=where, hint="Run pip install bitsandbytes"
        )
    if model.folder is None:
        raise RecipeError(
            "qlora keeps a trained model in 4 bits, and this one is from scratch",
            where=where,
            hint="Name a checkpoint in model.path",
        )
    if getattr(model.config, "quantization_config", None) is not None:
        raise RecipeError(
            "the model is quantized already",
            where=where,
            hint="Choose peft.type lora, which works with a quantized model",
        )
    if resolved.ds_config["zero_optimization"].get("stage") == 3:
        raise RecipeError(
            "qlora keeps whole weights on each rank, and ZeRO-3 divides what bitsandbytes cannot divide",
            where=loaded.where("deepspeed", "zero_optimization", "stage"),
            hint="Set it to 2, which divides all that is trained",
        )
    loading_options(loaded, settings, "bf16")


def loading_options(loaded: LoadedRecipe, settings: PeftSettings | None, precision: str) -> dict[str, Any]:
    """Options of ``from_pretrained`` for the recipe's adapter: for ``qlora``, the layers in 4 bits.

    By default nf4 with quantized constants (Dettmers et al. 2023, section 3), computing in the precision of
    the run. RecipeError if transformers refuses a value.
    """
    if settings is None or settings.type_ != "qlora":
        return {}
    from transformers import BitsAndBytesConfig

    computing = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    keys = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": computing,
        **settings.four_bits,
    }
    try:
        config = BitsAndBytesConfig(load_in_4bit=True, **keys)
    except (TypeError, ValueError, AttributeError) as error:
        raise RecipeError(
            f"transformers refuses it: {error}", where=loaded.where("peft"), hint="Correct the bnb_4bit keys"
        ) from error
    device = torch.cuda.current_device() if count_gpus() else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}
