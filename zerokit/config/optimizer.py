"""The section `optimizer`. What its `params` may hold depends on its `type`."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializeAsAny, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from zerokit.config.base import Section
from zerokit.config.conditions import LEGACY_FUSION, Acts
from zerokit.config.optimizers import DEEPSPEED_OPTIMIZERS, REMOVED_OPTIMIZERS, TORCH_OPTIMIZERS, optimizer_spec
from zerokit.config.params import OptimizerParams, params_class, params_of, unknown_name


def _known_optimizer(name: str) -> str:
    if optimizer_spec(name) is not None:
        return name
    replacement = REMOVED_OPTIMIZERS.get(name.lower())
    if replacement is not None:
        message = "the optimizer '{name}' was removed from DeepSpeed"
        raise PydanticCustomError("name", message, {"name": name, "hint": f"Use {replacement}"})
    raise unknown_name("an optimizer", name, (*DEEPSPEED_OPTIMIZERS, *TORCH_OPTIMIZERS), DEEPSPEED_OPTIMIZERS)


def params_of_optimizer(name: object, params: object) -> type[OptimizerParams] | None:
    """The model of `optimizer.params` for an optimizer's `type`, or None if the type is not known.

    Args:
        params: the value of `params`, in which `torch_adam` may choose another class.
    """
    if not isinstance(name, str):
        return None
    if name.lower() in ("adam", "adamw") and isinstance(params, dict) and params.get("torch_adam"):
        as_adamw = name.lower() == "adamw" or params.get("adam_w_mode", True)
        return params_class("TorchAdamWParams" if as_adamw else "TorchAdamParams")
    spec = optimizer_spec(name)
    return params_of(spec.name) if spec is not None else None


class Optimizer(Section):
    """The optimizer that DeepSpeed builds.

    DeepSpeed ignores it when the training script passes an optimizer of its own. Under the Trainer it
    overrides the argument `optim` silently.
    """

    type: Annotated[
        str,
        AfterValidator(_known_optimizer),
        Field(
            examples=["AdamW", "Adam", "Lion", "Muon", "SGD"],
            description="One of DeepSpeed's optimizers, or the exact name of a class in `torch.optim`. "
            "Needed: without it DeepSpeed ignores the section.",
        ),
    ]
    params: SerializeAsAny[OptimizerParams | None] = Field(
        default=None,
        description="Arguments of its constructor, such as `lr`, `betas`, `eps` and `weight_decay`. Default "
        "none: the class's defaults.",
    )
    legacy_fusion: Annotated[bool, Acts(0, when=LEGACY_FUSION)] = Field(
        default=False, description="Use the older fused step of the fp16 and bf16 optimizers. Default false."
    )

    @field_validator("params", mode="plain")
    @classmethod
    def _params_of_type(cls, value: Any, info: ValidationInfo) -> OptimizerParams | None:
        model = params_of_optimizer(info.data.get("type"), value)
        return None if value is None or model is None else model.model_validate(value)
