"""What tests of attention ask a rehearsal; all figures in bytes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.rehearsal.attention_cases import CHOICES, SEEN, Case, choice
from tests.rehearsal.questions import peak

if TYPE_CHECKING:
    import torch

    from zerokit.rehearsal import VirtualRank


def choices(rank: VirtualRank) -> dict[str, int]:
    return {name: choice(case) for name, (case, _) in CHOICES.items()}


def choices_by_cudnn(rank: VirtualRank) -> dict[str, int]:
    """One process for each release, because torch settles the order once."""
    found = {}
    for version in (0, 91002, 91500, 91501, 92000):
        child = os.fork()
        if child == 0:
            rank.backend._library.zk_set_cudnn_version(version)
            os._exit(choice(Case()))
        found[str(version)] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found


def refusal(rank: VirtualRank) -> str:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensor = torch.empty((2, 8, 256, 64), device="cuda")
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    except RuntimeError as error:
        return str(error)
    return "accepted"


def meta_kernels(rank: VirtualRank) -> dict[str, Any]:
    import torch

    differences: list[str] = []
    tensors = 0
    for name, call in _operator_calls():
        on_device = call(torch.device("cuda"))
        on_meta = call(torch.device("meta"))
        for index, (left, right) in enumerate(zip(on_device, on_meta, strict=True)):
            if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor):
                if left != right:
                    differences.append(f"{name} result {index}: {left} and {right}")
                continue
            tensors += 1
            if _layout(left) != _layout(right):
                differences.append(f"{name} result {index}: {_layout(left)} and {_layout(right)}")
    return {"differences": differences, "tensors": tensors}


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    strides = [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    return tuple(tensor.shape), strides if tensor.numel() else [], tensor.dtype


def _operator_calls() -> list[tuple[str, Callable[[torch.device], tuple[Any, ...]]]]:
    """Every attention operator with every memory layout, as functions of the device."""
    import torch

    calls: list[tuple[str, Callable[[torch.device], tuple[Any, ...]]]] = []
    for batch, heads, key_heads, queries, keys, head, value_head in (
        (2, 8, 8, 256, 256, 64, 64),
        (3, 8, 2, 200, 200, 128, 128),
        (1, 4, 4, 65, 130, 40, 40),
        (2, 6, 6, 33, 70, 64, 32),
        (2, 4, 4, 1, 90, 256, 256),
        (2, 4, 4, 128, 128, 136, 136),
    ):
        for layout in ("plain", "transposed", "fused"):
            sizes = (
                (batch, heads, queries, head),
                (batch, key_heads, keys, head),
                (batch, key_heads, keys, value_head),
            )
            same_heads = heads == key_heads
            same_dims = head == value_head
            for dtype in (torch.bfloat16, torch.float32):
                for operator in ("flash", "efficient", "cudnn"):
                    if operator == "efficient" and not same_heads:
                        continue
                    if operator != "efficient" and dtype == torch.float32:
                        continue
                    if operator == "flash" and not same_dims:
                        continue
                    name = f"{operator} {sizes} {layout} {dtype}"
                    run = functools.partial(_forward_and_backward, operator, sizes, layout, dtype)
                    calls.append((name, run))
    return calls


def _forward_and_backward(
    operator: str, sizes: tuple[tuple[int, ...], ...], layout: str, dtype: torch.dtype, device: torch.device
) -> tuple[Any, ...]:
    import torch

    def tensor(shape: tuple[int, ...]) -> torch.Tensor:
        batch, heads, rows, head = shape
        if layout == "plain":
            return torch.empty(shape, dtype=dtype, device=device)
        if layout == "transposed":
            return torch.empty((batch, rows, heads, head), dtype=dtype, device=device).transpose(1, 2)
        return torch.empty((batch, rows, 3, heads, head), dtype=dtype, device=device)[:, :, 1].transpose(1, 2)

    q, k, v = (tensor(shape) for shape in sizes)
    aten = torch.ops.aten
    if operator == "flash":
        out = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)
        grads = aten._scaled_dot_product_flash_attention_backward(
            torch.empty_like(out[0]), q, k, v, *out[:6], 0.0, True, out[6], out[7]
        )
        return (*out, *grads)
    if operator == "efficient":
        bias = torch.empty((sizes[0][0], sizes[0][1], sizes[0][2], sizes[1][2]), dtype=dtype, device=device)
        out = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True)
        grads = aten._scaled_dot_product_efficient_attention_backward(
            torch.empty_like(out[0]), q, k, v, bias, *out, 0.0, [True] * 4
        )
        return (*out, *grads)
    out = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    grads = aten._scaled_dot_product_cudnn_attention_backward(
        torch.empty_like(out[0]), q, k, v, *out[:2], out[6], out[7], None, None, None, *out[4:6], 0.0, False
    )
    return (*out, *grads)


def autograd(rank: VirtualRank) -> list[str]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wrong = []
    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    fused.append(SDPBackend.MATH)
    attention = torch.nn.functional.scaled_dot_product_attention
    for head in (64, 66, 80, 100):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            for what in ("plain", "causal", "mask", "boolean mask", "grouped", "dropout"):
                for backend in (None, SDPBackend.MATH):
                    key_heads = 2 if what == "grouped" else 4
                    q = torch.empty((2, 4, 96, head), dtype=dtype, device="cuda", requires_grad=True)
                    k, v = (
                        torch.empty((2, key_heads, 96, head), dtype=dtype, device="cuda", requires_grad=True)
                        for _ in range(2)
                    )
                    mask = None
                    if "mask" in what:
                        mask = torch.ones(
                            (96, 96), dtype=torch.bool if "bool" in what else dtype, device="cuda"
                        )
                    with sdpa_kernel(fused if backend is None else backend):
                        out = attention(
                            q,
                            k,
                            v,
                            mask,
                            0.25 if what == "dropout" else 0.0,
                            what == "causal",
                            enable_gqa=what == "grouped",
                        )
                    torch.autograd.backward(out.sum())
                    shapes = [
                        tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in (q, k, v)
                    ]
                    if out.shape != q.shape or not all(shapes):
                        wrong.append(f"{head} {dtype} {what} {backend}")
    return wrong


def _pairs_seen(rank: VirtualRank) -> dict[str, list[float]]:
    """By kernel, those of one head that the FLOPs of each case of SEEN are of."""
    import torch

    def pairs(operator: Any, *arguments: Any, **options: Any) -> float:
        before = rank.backend.flops
        operator(*arguments, **options)
        return (rank.backend.flops - before) / (2 * (64 + 64))

    flash, efficient = torch.ops.aten._flash_attention_forward, torch.ops.aten._efficient_attention_forward
    found: dict[str, list[float]] = {"flash": [], "efficient": []}
    for queries, keys, causal, left, right in SEEN:
        q, k = (
            torch.empty((1, rows, 1, 64), dtype=torch.bfloat16, device="cuda") for rows in (queries, keys)
        )
        window = {"window_size_left": left, "window_size_right": right}
        found["flash"].append(pairs(flash, q, k, k, None, None, queries, keys, 0.0, causal, False, **window))
        of_causal = {"window_size": None if left < 0 else left + 1}
        found["efficient"] += [
            pairs(efficient, q, k, k, None, None, None, None, None, 0.0, mask_type, False, **of_causal)
            for mask_type in (1, 2)
        ]
    packed = torch.empty((1, 300, 1, 64), dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    found["packed"] = [
        pairs(efficient, packed, packed, packed, None, starts, starts, 200, 200, 0.0, 1, False)
    ]
    return found


def flops(rank: VirtualRank) -> dict[str, list[float]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counted: dict[str, list[float]] = {"rehearsal": [], "torch": []}

    def both(run: Callable[[], Any]) -> None:
        before = rank.backend.flops
        with FlopCounterMode(display=False) as counter:
            run()
        counted["rehearsal"].append(rank.backend.flops - before)
        counted["torch"].append(counter.get_total_flops())

    q = torch.empty((2, 8, 300, 64), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    attention = torch.nn.functional.scaled_dot_product_attention
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            for causal in (False, True):
                both(
                    lambda causal=causal: torch.autograd.backward(  # type: ignore[misc]
                        attention(q, q, q, is_causal=causal).sum()
                    )
                )
    packed = torch.empty((300, 8, 64), dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    both(
        lambda: torch.ops.aten._flash_attention_forward(
            packed, packed, packed, starts, starts, 200, 200, 0.0, True, False
        )
    )
    images = torch.empty((2, 3, 33, 31), device="cuda", requires_grad=True)
    for layer in (
        torch.nn.Conv2d(3, 8, 5, stride=(2, 3), padding=1, dilation=2, device="cuda"),
        torch.nn.ConvTranspose2d(3, 8, 3, stride=2, device="cuda"),
    ):
        both(lambda layer=layer: torch.autograd.backward(layer(images).sum()))  # type: ignore[misc]
    sequence = torch.empty((3, 50), device="cuda", requires_grad=True)
    both(lambda: torch.autograd.backward(torch.nn.Conv1d(3, 4, 7, device="cuda")(sequence).sum()))
    return counted | _pairs_seen(rank)


# ---- working memory


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
