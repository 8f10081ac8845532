"""The configs and runs of the rules' examples. No run is built before a test or a page asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerokit.models import ModelShape
    from zerokit.recipe import Recipe

ONE_SAMPLE: Mapping[str, Any] = {"train_micro_batch_size_per_gpu": 1}
"""The least of a config that DeepSpeed takes."""


def zero(stage: int | str, /, **keys: Any) -> dict[str, Any]:
    """The least of a config with ZeRO: the stage, and other keys of `zero_optimization`."""
    return {**ONE_SAMPLE, "zero_optimization": {"stage": stage, **keys}}


class Given(Mapping[str, Any]):
    """Facts of a run, by their names in `Run.of`; a function among the values is called for its result.

    ``Given(model=llama_8b, num_gpus=8)`` costs nothing until a rule's examples are run.
    """

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        value = self._fields[name]
        return value() if callable(value) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def llama_8b() -> ModelShape:
    """A dense decoder with a large embedding: the shape of Llama 3.1 8B."""
    return _decoder("llama", vocab_size=128_256, hidden=4096, intermediate=14_336, layers=32, heads=(32, 8))


def model_with_text_config() -> ModelShape:
    """A model whose config.json has its dimensions in `text_config`, as models for text and images do."""
    return replace(llama_8b(), hidden_size_for_accelerate=None)


def small_decoder() -> ModelShape:
    """A decoder of 0.1 billion parameters."""
    return _decoder("llama", vocab_size=32_000, hidden=768, intermediate=2048, layers=12, heads=(12, 12))


def mixture_of_experts() -> ModelShape:
    """A decoder with experts, of a kind that DeepSpeed does not know by itself."""
    from dataclasses import replace

    from zerokit.models import Experts, Tensor

    dense = _decoder("olmoe", vocab_size=50_304, hidden=2048, intermediate=1024, layers=16, heads=(16, 16))
    experts = [
        Tensor("model.layers.*.mlp.experts.gate_up_proj", (64, 2 * 1024, 2048), "expert", 16),
        Tensor("model.layers.*.mlp.experts.down_proj", (64, 2048, 1024), "expert", 16),
    ]
    attention = [tensor for tensor in dense.tensors if ".mlp." not in tensor.name]
    return replace(dense, tensors=(*attention, *experts), experts=Experts(64, 8, 16))


def quantised() -> ModelShape:
    """A checkpoint whose config.json has a `quantization_config`."""
    from dataclasses import replace

    return replace(llama_8b(), quantization="bitsandbytes")


def recipe(**sections: Any) -> Recipe:
    """A recipe with the sections that matter, and the least of the others."""
    from zerokit.recipe import Recipe

    return Recipe.model_validate({"model": "some/model", "data": {"train": "train.jsonl"}, **sections})


def _decoder(
    model_type: str, *, vocab_size: int, hidden: int, intermediate: int, layers: int, heads: tuple[int, int]
) -> ModelShape:
    from zerokit.models import ModelShape, Tensor

    head_dim = hidden // heads[0]
    key_value = heads[1] * head_dim

    def each(name: str, shape: tuple[int, ...], kind: Any) -> Tensor:
        return Tensor(f"model.layers.*.{name}.weight", shape, kind, layers)

    return ModelShape(
        name=f"an example of {model_type}",
        model_type=model_type,
        architecture="",
        tensors=(
            Tensor("model.embed_tokens.weight", (vocab_size, hidden), "embedding"),
            each("self_attn.q_proj", (hidden, hidden), "attention"),
            each("self_attn.k_proj", (key_value, hidden), "attention"),
            each("self_attn.v_proj", (key_value, hidden), "attention"),
            each("self_attn.o_proj", (hidden, hidden), "attention"),
            each("mlp.gate_proj", (intermediate, hidden), "mlp"),
            each("mlp.up_proj", (intermediate, hidden), "mlp"),
            each("mlp.down_proj", (hidden, intermediate), "mlp"),
            each("input_layernorm", (hidden,), "norm"),
            each("post_attention_layernorm", (hidden,), "norm"),
            Tensor("model.norm.weight", (hidden,), "norm"),
            Tensor("lm_head.weight", (vocab_size, hidden), "embedding"),
        ),
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        head_dim=head_dim,
        vocab_size=vocab_size,
        max_position_embeddings=None,
        tie_word_embeddings=False,
        dtype="bfloat16",
        hidden_size_for_trainer=hidden,
        hidden_size_for_accelerate=hidden,
    )
