"""The shape of a dense Llama-type decoder: parameters and what autograd saves of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from zerokit.errors import ZerokitError
from zerokit.memory.model_states import check_positive


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a Llama-type decoder (no biases, gated MLP, RMSNorm), named as transformers names them.

    Raises:
        ZerokitError: a size that is not positive, or heads that do not divide evenly.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int

    def __post_init__(self) -> None:
        check_positive(**vars(self))
        for whole, part in (
            ("hidden_size", "num_attention_heads"),
            ("num_attention_heads", "num_key_value_heads"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise ZerokitError(
                    f"{whole} {getattr(self, whole)} is not a multiple of {part} {getattr(self, part)}",
                    hint="Check the sizes",
                )

    @property
    def key_value_size(self) -> int:
        """Width of the keys, and of the values: head size times key-value heads."""
        return self.hidden_size // self.num_attention_heads * self.num_key_value_heads

    def parameter_sizes(self, tie_word_embeddings: bool) -> Iterator[int]:
        """Elements of every parameter, in the order of `LlamaForCausalLM.parameters()`."""
        h, f, kv = self.hidden_size, self.intermediate_size, self.key_value_size
        yield self.vocab_size * h
        for _ in range(self.num_hidden_layers):
            yield from (h * h, h * kv, h * kv, h * h)  # query, key, value, output
            yield from (h * f, h * f, f * h)  # gate, up, down
            yield from (h, h)  # the norms before attention and before the MLP
        yield h
        if not tie_word_embeddings:
            yield self.vocab_size * h

    def num_parameters(self, tie_word_embeddings: bool) -> int:
        """Φ = V·h·(1 or 2) + L·(2h² + 2h·kv + 3h·f + 2h) + h, kv being the width of the keys."""
        return sum(self.parameter_sizes(tie_word_embeddings))


def layer_activation_bytes(
    shape: DecoderShape, *, micro_batch_size: int, seq_len: int, bytes_per_element: int
) -> int:
    """What autograd saves of one layer for its backward, with SDPA and without checkpointing.

    b·s·(h·(8 + 6e) + 2e·kv + 4e·f + 4a + 8) bytes, e being `bytes_per_element` and kv the width of the keys:

    - each of two RMSNorms: its input in fp32 (4h), the normalised input and the weighted output (2e·h),
      and the fp32 reciprocal root (4);
    - attention: query and output (2e·h), key and value (2e·kv), the fp32 log-sum-exp per head (4a);
    - the MLP: gate, its activation, up and their product (4e·f).

    Source: saved tensors of transformers' modeling_llama.py, counted once per storage; a test counts them.
    """
    h, f, kv, e = shape.hidden_size, shape.intermediate_size, shape.key_value_size, bytes_per_element
    per_token = h * (8 + 6 * e) + 2 * e * kv + 4 * e * f + 4 * shape.num_attention_heads + 8
    return micro_batch_size * seq_len * per_token


def activation_bytes(
    shape: DecoderShape, *, micro_batch_size: int, seq_len: int, bytes_per_element: int
) -> int:
    """What autograd saves of the whole decoder up to and without the logits, without checkpointing.

    L layers (see `layer_activation_bytes`), the final norm b·s·(h·(4 + 2e) + 4), the token ids 8·b·s, and the
    rotary cosines and sines 2e·s·(h/a), which all layers and all sequences of the batch share.
    """
    h, e, tokens = shape.hidden_size, bytes_per_element, micro_batch_size * seq_len
    layer = layer_activation_bytes(
        shape, micro_batch_size=micro_batch_size, seq_len=seq_len, bytes_per_element=e
    )
    rotary = 2 * e * seq_len * (h // shape.num_attention_heads)
    return shape.num_hidden_layers * layer + tokens * (h * (4 + 2 * e) + 4 + 8) + rotary


def activation_gradient_bytes(
    shape: DecoderShape, *, micro_batch_size: int, seq_len: int, bytes_per_element: int
) -> int:
    """What the start of the backward pass needs above the saved activations.

    The larger of two moments, e being `bytes_per_element`:

    - backward of the final norm: 12·b·s·h, and 4·b·s·h more for the casts where e is 2;
    - backward of the last gated MLP: 2e·b·s·f for the gradients of gate and up and e·b·s·h for that of the
      residual, less the (4 + 2e)·b·s·h that the final norm has freed by then.

    Source: measured on transformers' modeling_llama.py; a test measures it.
    """
    h, f, e = shape.hidden_size, shape.intermediate_size, bytes_per_element
    norm = (12 + (4 if e == 2 else 0)) * h
    mlp = 2 * e * f - (4 + e) * h
    return micro_batch_size * seq_len * max(norm, mlp)


def loss_bytes(shape: DecoderShape, *, micro_batch_size: int, seq_len: int, bytes_per_element: int) -> int:
    """Logits and cross entropy at their largest, in the loss's backward: (12 + e)·b·s·V bytes.

    The logits, which the model's output holds (e), and in fp32 the log-softmax, the gradient of the
    log-likelihood and the gradient of the logits (3 x 4): 14 bytes per logit at 16 bits, 16 at 32 bits.

    Source: transformers loss_utils.py ForCausalLMLoss over torch's cross_entropy; a test measures it.
    """
    return (12 + bytes_per_element) * micro_batch_size * seq_len * shape.vocab_size
