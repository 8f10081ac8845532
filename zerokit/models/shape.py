"""The shape of a model: its dimensions and all of its parameters, without any weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from zerokit.models.parts import Experts
from zerokit.models.tensors import KINDS, Kind, Tensor


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What a config.json says of a model, with transformers' defaults filled in.

    Dimensions bear transformers' names. Those of an encoder-decoder are its encoder's, those of a model that
    reads text and images are its text part's; None where the model has no such thing.
    """

    name: str
    """As it was asked for, or its Hub id in the catalogue."""
    model_type: str
    """The key of that name in the config.json."""
    architecture: str
    """The class of transformers whose parameters these are."""
    tensors: tuple[Tensor, ...]
    """Every distinct parameter, tied ones once. Their sum is exact."""
    hidden_size: int | None
    intermediate_size: int | None
    num_hidden_layers: int | None
    num_attention_heads: int | None
    num_key_value_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    max_position_embeddings: int | None
    tie_word_embeddings: bool
    """The output matrix is the token embedding. False also where there is no output matrix."""
    experts: Experts | None = None
    """None for a dense model."""
    dtype: str | None = None
    """The type its weights were saved in, such as ``bfloat16``; None if the config does not say."""
    quantization: str | None = None
    """The method of its `quantization_config`, such as ``fp8``; parameters are counted as if unquantized."""
    hidden_size_for_trainer: int | None = None
    """What "auto" bucket sizes are made from under transformers' Trainer; None: it refuses them.

    Source: `HfTrainerDeepSpeedConfig.trainer_config_finalize`, transformers `integrations/deepspeed.py`:
    `hidden_size`, else the largest of `hidden_sizes`, else the same of `text_config`.
    """
    hidden_size_for_accelerate: int | None = None
    """The same under accelerate, which does not look into `text_config`.

    Source: `Accelerator._prepare_deepspeed`, accelerate `accelerator.py`.
    """
    has_sdpa: bool = True
    """Whether transformers can compute its attention by torch's `scaled_dot_product_attention`; where not, it
    is written out in plain operations ("eager") unless flash attention is asked for."""
    is_encoder_decoder: bool = False
    """It is an encoder and a decoder, with a sequence for each."""
    counted_by: Literal["zerokit", "transformers"] = "zerokit"
    """``transformers``: built on torch's meta device, the kinds of its tensors told by their names."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers should know."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The config.json itself."""

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones once (Φ)."""
        return sum(tensor.total_elements for tensor in self.tensors)

    @property
    def num_trainable_parameters(self) -> int:
        """Those that training changes unless some are frozen or replaced by adapters."""
        return sum(tensor.total_elements for tensor in self.tensors if tensor.trainable)

    @property
    def num_active_parameters(self) -> int:
        """Those that work on one token: of the routed experts only as many as a token meets."""
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
        """The parameter with the most elements, which ZeRO-3 has to gather in one piece."""
        return max(self.tensors, key=lambda tensor: tensor.elements)

    @property
    def num_embedding_parameters(self) -> int:
        """Parameters of kind ``embedding``: tokens, positions, and the output matrix where it is not tied."""
        return self.parameters_by_kind["embedding"]

    @property
    def is_moe(self) -> bool:
        """Whether it has routed experts."""
        return self.experts is not None
