"""Whether a run's precision is one that this machine has, and that its checkpoint can be trained in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerokit.checkpoint.source import read_model_config
from zerokit.distributed.group import count_gpus
from zerokit.errors import RecipeError
from zerokit.training.arguments import written_at

if TYPE_CHECKING:
    from pathlib import Path

    from zerokit.recipe import LoadedRecipe
    from zerokit.resolving.settle import Resolved


def _precisions() -> list[str]:
    """What this machine trains in, by what DeepSpeed asks when it has loaded the model."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    can = {"bf16": accelerator.is_bf16_supported(), "fp16": accelerator.is_fp16_supported(), "fp32": True}
    return [name for name, is_supported in can.items() if is_supported]


def check_precision(resolved: Resolved, loaded: LoadedRecipe) -> None:
    """Refuse a precision that this machine does not have.

    Raises:
        RecipeError: it does not.
    """
    supported = _precisions()
    for name in ("bf16", "fp16"):
        if resolved.training[name] and name not in supported:
            device = "the CPU" if count_gpus() == 0 else "the GPU"
            raise RecipeError(
                f"{name} does not run on {device} of this machine",
                where=loaded.where(*written_at(name, loaded)),
                hint=f"Set precision to {' or '.join(supported)}",
            )


def check_fp16(resolved: Resolved, loaded: LoadedRecipe, folder: Path | None) -> None:
    """Refuse fp16 for a checkpoint in bf16: what it computes may be beyond 65,504, where fp16 ends.

    Raises:
        RecipeError: it is one, and the recipe does not say by `model.dtype` that fp16 is meant.
    """
    if folder is None or not resolved.training["fp16"] or loaded.recipe.model.dtype is not None:
        return
    config = read_model_config(folder / "config.json", where=loaded.where("model", "path")).data
    if "bfloat16" in (config.get("dtype"), config.get("torch_dtype")):
        others = [name for name in _precisions() if name != "fp16"]
        raise RecipeError(
            f"the run would be in fp16, but '{folder}' was trained in bf16, of which fp16 lacks the range",
            where=loaded.where(*written_at("fp16", loaded)),
            hint=f"Set precision to {' or '.join(others)}, or model.dtype to float16 if fp16 is meant",
        )
