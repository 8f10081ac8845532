"""The shape of a model: its dimensions and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import commonpath
from typing import Any, Literal

from zerokit.models.tensors import KINDS, Kind, Tensor


@dataclass(frozen=True)
class Experts:
    """The mixture-of-experts layers of a model."""

    num_experts: int
    """Routed experts of a layer, without shared ones."""
    num_experts_per_tok: int
    """Routed experts per token."""
    num_layers: int
    """Layers with experts."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The shape of a model from its config.json and transformers' defaults.

    Dimensions have transformers' names. Those of an encoder-decoder are its encoder's, those of a model for
    text and images are its text part's. None: the model has no such dimension.
    """

    name: str
    """The requested name, or its Hub id in the catalogue."""
    model_type: str
    """`model_type` of the config.json."""
    architecture: str
    """The class of transformers with these parameters."""
    tensors: tuple[Tensor, ...]
    """Every distinct parameter; tied ones once. The sum is exact."""
    hidden_size: int | None
    intermediate_size: int | None
    num_hidden_layers: int | None
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    """The output matrix is the token embedding. False also without an output matrix."""
    experts: Experts | None = None
    """None for a dense model."""
    dtype: str | None = None
    """The type of the saved weights, such as ``bfloat16``; None if unknown."""
    quantization: str | None = None
    """The method of `quantization_config`, such as ``fp8``; parameters are counted unquantized."""
    hidden_size_for_trainer: int | None = None
    """The size from which transformers' Trainer fills "auto" bucket sizes; None: it refuses them.

    Source: `HfTrainerDeepSpeedConfig.trainer_config_finalize`, transformers `integrations/deepspeed.py`:
    `hidden_size`, else the maximum of `hidden_sizes`, else the same of `text_config`.
    """
    hidden_size_for_accelerate: int | None = None
    """The same for accelerate, which ignores `text_config`.

    Source: `Accelerator._prepare_deepspeed`, accelerate `accelerator.py`.
    """
    has_sdpa: bool = True
    """Whether transformers supports torch's `scaled_dot_product_attention`; otherwise attention is eager,
    unless flash attention is requested."""
    is_encoder_decoder: bool = False
    """An encoder and a decoder, each with its own sequence."""
    counted_by: Literal["zerokit", "transformers"] = "zerokit"
    """``transformers``: built on torch's meta device; kinds of tensors are guessed from names."""
    notes: tuple[str, ...] = ()
    """Remarks for readers."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The config.json itself."""

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones once (Φ)."""
        return sum(tensor.total_elements for tensor in self.tensors)

    @property
    def num_trainable_parameters(self) -> int:
        """Parameters that are trained by default, without freezing and adapters."""
        return sum(tensor.total_elements for tensor in self.tensors if tensor.trainable)

    @property
    def num_active_parameters(self) -> int:
        """Parameters that process one token: only some of the routed experts."""
        if self.experts is None:
            return self.num_parameters
        routed = self.parameters_by_kind["expert"]
        idle = self.experts.num_experts - self.experts.num_experts_per_tok
        return self.num_parameters - routed * idle // self.experts.num_experts

    @property
    def parameters_by_kind(self) -> dict[Kind, int]:
        """Parameters of each kind; they add up to `num_parameters`."""
        totals = dict.fromkeys(KINDS, 0)
        for tensor in self.tensors:
            totals[tensor.kind] += tensor.total_elements
        return totals

    @property
    def largest_tensor(self) -> Tensor:
        """The parameter with the most elements, which ZeRO-3 gathers in one piece."""
        return max(self.tensors, key=lambda tensor: tensor.elements)

    @property
    def mlp_modules(self) -> tuple[str, ...]:
        """Modules that hold the whole MLP of a layer, such as ``model.layers.*.mlp``.

        Empty if layers have experts, or own the matrices of their MLP themselves, as in OPT and BERT.
        """
        stacks: dict[str, list[str]] = {}
        for tensor in self.tensors:
            if tensor.kind == "mlp" and "*" in tensor.name:
                owner = tensor.name.rpartition(".")[0].replace(".", "/")
                stacks.setdefault(tensor.name.partition("*")[0], []).append(owner)
        paths = (commonpath(owners).replace("/", ".") for owners in stacks.values())
        return () if self.is_moe else tuple(path for path in paths if not path.endswith("*"))

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return self.experts is not None
