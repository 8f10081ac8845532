"""What tests of attention ask a rehearsal; all figures in bytes."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tests.rehearsal.attention_cases import CHOICES, SEEN, Case, choice
from tests.rehearsal.questions import compared_with_meta, peak

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


def meta_kernels(rank: VirtualRank) -> Any:
    return compared_with_meta(_operator_calls(), _layout)


def _layout(result: Any) -> Any:
    import torch

    if not isinstance(result, torch.Tensor):
        return result
    strides = [stride for stride, size in zip(result.stride(), result.shape, strict=True) if size > 1]
    return tuple(result.shape), strides if result.numel() else [], result.dtype


def _operator_calls() -> Iterator[tuple[str, Callable[[torch.device], tuple[Any, ...]]]]:
    """Every attention operator with every memory layout, as functions of the device."""
    import torch

    shapes = (
        (2, 8, 8, 256, 256, 64, 64),
        (3, 8, 2, 200, 200, 128, 128),
        (1, 4, 4, 65, 130, 40, 40),
        (2, 6, 6, 33, 70, 64, 32),
        (2, 4, 4, 1, 90, 256, 256),
        (2, 4, 4, 128, 128, 136, 136),
    )
    layouts, dtypes = ("plain", "transposed", "fused"), (torch.bfloat16, torch.float32)
    kinds = ("flash", "efficient", "cudnn")
    for shape, layout, dtype, operator in itertools.product(shapes, layouts, dtypes, kinds):
        batch, heads, key_heads, queries, keys, head, value_head = shape
        if operator == "efficient":
            is_accepted = heads == key_heads
        else:
            is_accepted = dtype == torch.bfloat16 and (operator == "cudnn" or head == value_head)
        if is_accepted:
            key = (batch, key_heads, keys)
            sizes = ((batch, heads, queries, head), (*key, head), (*key, value_head))
            run = functools.partial(_forward_and_backward, operator, sizes, layout, dtype)
            yield f"{operator} {sizes} {layout} {dtype}", run


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
    """Calls whose output or gradients have another shape than their inputs."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
    backends = {"all": [*fused, SDPBackend.MATH], "math": [SDPBackend.MATH]}
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    whats = ("plain", "causal", "mask", "boolean mask", "grouped", "dropout")
    wrong = []
    for head, dtype, what, backend in itertools.product((64, 66, 80, 100), dtypes, whats, backends):
        q, k, v = (
            torch.empty((2, heads, 96, head), dtype=dtype, device="cuda", requires_grad=True)
            for heads in (4, *[2 if what == "grouped" else 4] * 2)
        )
        mask_dtype = torch.bool if "bool" in what else dtype
        mask = torch.ones((96, 96), dtype=mask_dtype, device="cuda") if "mask" in what else None
        dropout = 0.25 if what == "dropout" else 0.0
        with sdpa_kernel(backends[backend]):
            out = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, mask, dropout, what == "causal", enable_gqa=what == "grouped"
            )
        torch.autograd.backward(out.sum())
        shapes = [one.grad is not None and one.grad.shape == one.shape for one in (q, k, v)]
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
        q, k = (torch.empty((1, rows, 1, 64), dtype=torch.bfloat16, device="cuda") for rows in (queries, keys))
        window = {"window_size_left": left, "window_size_right": right}
        found["flash"].append(pairs(flash, q, k, k, None, None, queries, keys, 0.0, causal, False, **window))
        of_causal = {"window_size": None if left < 0 else left + 1}
        found["efficient"] += [
            pairs(efficient, q, k, k, None, None, None, None, None, 0.0, mask_type, False, **of_causal)
            for mask_type in (1, 2)
        ]
    packed = torch.empty((1, 300, 1, 64), dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    found["packed"] = [pairs(efficient, packed, packed, packed, None, starts, starts, 200, 200, 0.0, 1, False)]
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

    def backward(inputs: list[torch.Tensor], starts: torch.Tensor | None, longest: int) -> Callable[[], Any]:
        lengths = (starts, starts, longest, longest)
        out, lse, state, unused, _ = aten._flash_attention_forward(*inputs, *lengths, 0.0, True, False)
        grad = torch.empty_like(out)
        return lambda: aten._flash_attention_backward(grad, *inputs, out, lse, *lengths, 0.0, True, state, unused)

    dense = backward(tensors((2, 1000, 8, 72), (2, 1000, 2, 72), (2, 1000, 2, 72)), None, 1000)
    starts = torch.tensor([0, 500, 1000, 1300], dtype=torch.int32, device="cuda")
    packed = backward(tensors((1300, 8, 72), (1300, 2, 72), (1300, 2, 72)), starts, 500)
    short = tensors((1, 64, 8, 128), (1, 4096, 8, 128), (1, 4096, 8, 128))
    many = tensors(*[(8, 2048, 32, 128)] * 3)
    forward = functools.partial(functools.partial, aten._flash_attention_forward)
    return {
        "gradients": sum(gradient.untyped_storage().nbytes() for gradient in dense()),
        "dense": peak(dense),
        "packed": peak(packed),
        "split_forward": peak(forward(*short, None, None, 64, 4096, 0.0, False, False)),
        "whole_forward": peak(forward(*many, None, None, 2048, 2048, 0.0, True, False)),
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
        backward = aten._scaled_dot_product_efficient_attention_backward
        given = (torch.empty_like(out[0]), q, q, q, None, *out, 0.0, [True, True, True, False])
        measured[name] = peak(functools.partial(backward, *given))
    return measured


def cudnn_memory(rank: VirtualRank) -> dict[str, int]:
    import torch

    measured = {}
    aten = torch.ops.aten
    q, grouped = (
        torch.empty((4, 2048, heads, 128), dtype=torch.bfloat16, device="cuda").transpose(1, 2) for heads in (32, 8)
    )
    for name, key, dropout in (("", q, 0.0), ("grouped ", grouped, 0.0), ("dropout ", q, 0.125)):
        forward = functools.partial(
            aten._scaled_dot_product_cudnn_attention, q, key, key, None, True, dropout, is_causal=True
        )
        out = forward()
        inputs = (torch.empty_like(out[0]), q, key, key, *out[:2], out[6], out[7])
        backward = aten._scaled_dot_product_cudnn_attention_backward
        if not name.startswith("grouped"):
            measured[f"{name}forward"] = peak(forward)
        options = (None, None, None, *out[4:6], dropout, True)
        measured[f"{name}backward"] = peak(functools.partial(backward, *inputs, *options))
    return measured
