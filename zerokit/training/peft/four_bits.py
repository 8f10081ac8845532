"""QLoRA: the model's linear layers in 4 bits, by bitsandbytes, and LoRA beside them."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from zerokit.distributed.group import count_gpus
from zerokit.errors import RecipeError
from zerokit.training.peft.keys import check_peft_keys

if TYPE_CHECKING:
    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved
    from zerokit.training.model import PreparedModel


def check_four_bits(loaded: LoadedRecipe, resolved: Resolved, model: PreparedModel) -> None:
    """Refuse a run whose model cannot be kept in 4 bits.

    Raises:
        RecipeError: bitsandbytes is missing, the model has no weights to quantize, or ZeRO would divide
            them.
    """
    where = loaded.where("peft", "type")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RecipeError(
            "qlora needs bitsandbytes, which is not installed",
            where=where,
            hint="Run pip install bitsandbytes",
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
            hint="Choose peft.type lora, which trains beside it",
        )
    if resolved.ds_config["zero_optimization"].get("stage") == 3:
        raise RecipeError(
            "qlora keeps whole weights on each rank, and ZeRO-3 divides what bitsandbytes cannot divide",
            where=loaded.where("deepspeed", "zero_optimization", "stage"),
            hint="Set it to 2, which divides all that is trained",
        )
    loading_options(loaded, "bf16")


def loading_options(loaded: LoadedRecipe, precision: str) -> dict[str, Any]:
    """What ``from_pretrained`` is given for the recipe's adapter: of ``qlora``, the layers in 4 bits.

    By default nf4 with constants that are quantized, too (Dettmers et al. 2023, section 3), computing in the
    precision of the run.

    Args:
        loaded: the recipe.
        precision: ``bf16``, ``fp16`` or ``fp32``.

    Raises:
        RecipeError: transformers refuses a value.
    """
    asked = check_peft_keys(loaded)
    if asked is None or asked.type_ != "qlora":
        return {}
    import torch
    from transformers import BitsAndBytesConfig

    computing = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
    keys = {
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": computing,
        **asked.four_bits,
    }
    try:
        config = BitsAndBytesConfig(load_in_4bit=True, **keys)
    except (TypeError, ValueError, AttributeError) as error:
        raise RecipeError(
            f"transformers refuses it: {error}", where=loaded.where("peft"), hint="Correct the bnb_4bit keys"
        ) from error
    device = torch.cuda.current_device() if count_gpus() else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}
