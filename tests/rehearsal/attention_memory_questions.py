"""What tests of attention ask about working memory; run by attention_questions. All figures in bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tests.rehearsal.requested_bytes import peak

if TYPE_CHECKING:
    import torch

    from zerokit.rehearsal import VirtualRank


def flash_memory(rank: VirtualRank) -> dict[str, int]:
    import torch

    aten = torch.ops.aten

    def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]

    q, k, v = tensors((2, 1000, 8, 72), (2, 1000, 2, 72), (2, 1000, 2, 72))
    out, lse, state, unused, _ = aten._flash_attention_forward(
        q, k, v, None, None, 1000, 1000, 0.0, True, False
    )

    def dense() -> Any:
        return aten._flash_attention_backward(
            torch_grad, q, k, v, out, lse, None, None, 1000, 1000, 0.0, True, state, unused
        )

    torch_grad = torch.empty_like(out)
    gradients = sum(gradient.untyped_storage().nbytes() for gradient in dense())
    packed = tensors((1300, 8, 72), (1300, 2, 72), (1300, 2, 72))
    starts = torch.tensor([0, 500, 1000, 1300], dtype=torch.int32, device="cuda")
    packed_out, packed_lse, *_ = aten._flash_attention_forward(
        *packed, starts, starts, 500, 500, 0.0, True, False
    )
    packed_grad = torch.empty_like(packed_out)
    short, *long = tensors((1, 64, 8, 128), (1, 4096, 8, 128), (1, 4096, 8, 128))
    many = tensors(*[(8, 2048, 32, 128)] * 3)
    return {
        "gradients": gradients,
        "dense": peak(dense),
        "packed": peak(
            lambda: aten._flash_attention_backward(
                packed_grad,
                *packed,
                packed_out,
                packed_lse,
                starts,
                starts,
                500,
                500,
                0.0,
                True,
                state,
                unused,
            )
        ),
        "split_forward": peak(
            lambda: aten._flash_attention_forward(short, *long, None, None, 64, 4096, 0.0, False, False)
        ),
        "whole_forward": peak(
            lambda: aten._flash_attention_forward(*many, None, None, 2048, 2048, 0.0, True, False)
        ),
    }


def efficient_memory(rank: VirtualRank) -> dict[str, int]:
    import torch

    measured = {}
    aten = torch.ops.aten
    for name, dtype, head in (
        ("bfloat16", torch.bfloat16, 64),
        ("float32", torch.float32, 64),
        ("head 256", torch.bfloat16, 256),
    ):
        q = torch.empty((2, 300, 4, head), dtype=dtype, device="cuda").transpose(1, 2)
        out = aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
        grad = torch.empty_like(out[0])
        measured[name] = peak(
            functools.partial(
                aten._scaled_dot_product_efficient_attention_backward,
                grad,
                q,
                q,
                q,
                None,
                *out,
                0.0,
                [True, True, True, False],
            )
        )
    return measured


def cudnn_memory(rank: VirtualRank) -> dict[str, int]:
    import torch

    measured = {}
    aten = torch.ops.aten
    q, grouped = (
        torch.empty((4, 2048, heads, 128), dtype=torch.bfloat16, device="cuda").transpose(1, 2)
        for heads in (32, 8)
    )
    for name, key, dropout in (("", q, 0.0), ("grouped ", grouped, 0.0), ("dropout ", q, 0.125)):
        forward = functools.partial(
            aten._scaled_dot_product_cudnn_attention, q, key, key, None, True, dropout, is_causal=True
        )
        out = forward()
        grad = torch.empty_like(out[0])
        backward = functools.partial(
            aten._scaled_dot_product_cudnn_attention_backward,
            grad,
            q,
            key,
            key,
            *out[:2],
            out[6],
            out[7],
            None,
            None,
            None,
            *out[4:6],
            dropout,
            True,
        )
        if not name.startswith("grouped"):
            measured[f"{name}forward"] = peak(forward)
        measured[f"{name}backward"] = peak(backward)
    return measured
