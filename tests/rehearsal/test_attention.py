"""Attention of a rehearsal: the backend that torch would choose, and what its kernels allocate.

A rehearsal changes its process for good, so every question is answered by a process of its own: this module run
with the name of one of `QUESTIONS`, which prints its answer as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

    from zerokit.rehearsal import Cluster

ROOT = Path(__file__).resolve().parents[2]
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0")


@functools.cache
def answer(question: str, capability: str = "9.0", environment: tuple[tuple[str, str], ...] = ()) -> Any:
    command = [sys.executable, "-m", "tests.rehearsal.test_attention", question, capability]
    outcome = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | dict(environment),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return json.loads(outcome.stdout.splitlines()[-1])


# ---- the choice

# name: (query, key, value sizes, what else), and the backend on each of CAPABILITIES. Expected values follow
# can_use_*_attention in torch 2.13 (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp) with cuDNN 9.20.
_SQUARE = (2, 8, 256, 64)
CHOICES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "bfloat16": (_SQUARE, _SQUARE, _SQUARE, {}, (FLASH, FLASH, CUDNN, CUDNN)),
    "causal": (_SQUARE, _SQUARE, _SQUARE, {"is_causal": True}, (FLASH, FLASH, CUDNN, CUDNN)),
    "float16": (_SQUARE, _SQUARE, _SQUARE, {"dtype": "float16"}, (FLASH, FLASH, CUDNN, CUDNN)),
    "float32": (_SQUARE, _SQUARE, _SQUARE, {"dtype": "float32"}, (EFFICIENT,) * 4),
    "float64": (_SQUARE, _SQUARE, _SQUARE, {"dtype": "float64"}, (MATH,) * 4),
    "mask": (_SQUARE, _SQUARE, _SQUARE, {"mask": (2, 1, 256, 256)}, (EFFICIENT, EFFICIENT, CUDNN, CUDNN)),
    "mask with gradient": (
        _SQUARE,
        _SQUARE,
        _SQUARE,
        {"mask": (2, 1, 256, 256), "mask_gradient": True},
        (EFFICIENT,) * 4,
    ),
    "head dim 66": ((2, 8, 256, 66),) * 3 + ({}, (FLASH,) * 4),
    "head dim 66, mask": ((2, 8, 256, 66),) * 3 + ({"mask": (256, 256)}, (MATH,) * 4),
    "head dim 192 and 128": (
        (2, 8, 256, 192),
        (2, 8, 256, 192),
        (2, 8, 256, 128),
        {},
        (EFFICIENT, EFFICIENT, CUDNN, CUDNN),
    ),
    "head dim 224, training": ((2, 8, 256, 224),) * 3 + ({"gradient": True}, (FLASH, EFFICIENT, CUDNN, FLASH)),
    "head dim 256, training": ((2, 8, 256, 256),) * 3 + ({"gradient": True}, (FLASH, FLASH, CUDNN, FLASH)),
    "head dim 512": ((2, 8, 256, 512),) * 3 + ({}, (EFFICIENT,) * 4),
    "grouped": (_SQUARE, (2, 2, 256, 64), (2, 2, 256, 64), {"gqa": True}, (FLASH, FLASH, CUDNN, CUDNN)),
    "grouped float32": (_SQUARE, (2, 2, 256, 64), (2, 2, 256, 64), {"gqa": True, "dtype": "float32"}, (MATH,) * 4),
    "fewer heads, not grouped": (_SQUARE, (2, 2, 256, 64), (2, 2, 256, 64), {}, (MATH,) * 4),
    "causal, longer keys": (
        _SQUARE,
        (2, 8, 512, 64),
        (2, 8, 512, 64),
        {"is_causal": True},
        (EFFICIENT, EFFICIENT, CUDNN, CUDNN),
    ),
    "dropout of a tenth": (_SQUARE, _SQUARE, _SQUARE, {"dropout_p": 0.1}, (FLASH,) * 4),
    "dropout of an eighth": (_SQUARE, _SQUARE, _SQUARE, {"dropout_p": 0.125}, (FLASH, FLASH, CUDNN, CUDNN)),
    "one key": (_SQUARE, (2, 8, 1, 64), (2, 8, 1, 64), {}, (FLASH,) * 4),
    "no keys": (_SQUARE, (2, 8, 0, 64), (2, 8, 0, 64), {}, (MATH,) * 4),
    "three dimensions": ((8, 256, 64),) * 3 + ({}, (MATH,) * 4),
    "head dim not contiguous": (_SQUARE, _SQUARE, _SQUARE, {"turned": True}, (MATH,) * 4),
    "float32 at an odd address": (_SQUARE, _SQUARE, _SQUARE, {"dtype": "float32", "offset": 1}, (MATH,) * 4),
    "deterministic": (_SQUARE, _SQUARE, _SQUARE, {"deterministic": True}, (FLASH,) * 4),
    "flash switched off": (_SQUARE, _SQUARE, _SQUARE, {"off": "flash"}, (EFFICIENT, EFFICIENT, CUDNN, CUDNN)),
    "cuDNN switched off": (_SQUARE, _SQUARE, _SQUARE, {"off": "cudnn"}, (FLASH,) * 4),
    "only math": (_SQUARE, _SQUARE, _SQUARE, {"only": "MATH"}, (MATH,) * 4),
    "only efficient": (_SQUARE, _SQUARE, _SQUARE, {"only": "EFFICIENT_ATTENTION"}, (EFFICIENT,) * 4),
}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_scaled_dot_product_attention_takes_the_backend_that_torch_would(capability: str) -> None:
    expected = {name: case[-1][CAPABILITIES.index(capability)] for name, case in CHOICES.items()}
    assert answer("choices", capability) == expected


def test_cudnn_goes_last_where_the_user_says_so() -> None:
    chosen = answer("choices", "9.0", (("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1"),))
    assert chosen["bfloat16"] == FLASH
    assert chosen["mask"] == EFFICIENT


def test_cudnn_goes_first_only_from_the_release_that_torch_trusts() -> None:
    assert answer("choices_by_cudnn") == {"0": FLASH, "91002": FLASH, "91500": FLASH, "91501": CUDNN, "92000": CUDNN}


def test_inputs_that_no_enabled_backend_takes_are_refused() -> None:
    assert answer("refusal").startswith("No available kernel")


# ---- results


def test_results_have_the_shapes_strides_and_dtypes_of_torchs_own_meta_kernels() -> None:
    compared = answer("meta_kernels")
    assert compared["differences"] == []
    assert compared["tensors"] > 300


def test_gradients_through_scaled_dot_product_attention_have_their_inputs_shapes() -> None:
    assert answer("autograd") == []


def test_flops_are_those_of_torchs_own_counter() -> None:
    counted = answer("flops")
    assert counted["rehearsal"] == counted["torch"]
    assert len(counted["torch"]) == 4


# ---- working memory, in bytes that the kernels request


def test_flash_backward_takes_accumulators_for_padded_rows_and_expanded_heads() -> None:
    measured = answer("flash_memory")
    assert measured["gradients"] == 2 * 1000 * (8 + 2 + 2) * 72 * 2
    padded_rows = 2 * 1024 * 8
    assert measured["dense"] == padded_rows * 4 + padded_rows * 96 * 4 + 2 * (2 * 1000 * 8 * 72 * 2)
    packed_rows = (1300 + 128 * 3) * 8
    assert measured["packed"] == packed_rows * 4 + packed_rows * 96 * 4 + 2 * (1300 * 8 * 72 * 2)


def test_flash_forward_splits_the_keys_when_it_has_too_few_rows_to_fill_the_gpu() -> None:
    splits, rows = 32, 8 * 64
    assert answer("flash_memory")["split_forward"] == splits * rows * (1 + 128) * 4
    assert answer("flash_memory")["whole_forward"] == 0


def test_efficient_backward_takes_tiles_for_the_query_gradient() -> None:
    measured = answer("efficient_memory")
    row_sums = 2 * 4 * 300 * 4
    assert measured["bfloat16"] == row_sums + 2 * 4 * 5 * (4 + 64 * 64) * 4
    product, total = 2 * 4 * 300 * 64 * 4, row_sums
    assert measured["float32"] == max(product + 2 * total, total + 2 * 4 * 5 * (4 + 64 * 64) * 4)
    # Beyond 128 the key and value gradients go through memory too, in 200 // (2 * 4) = 25, at most 5 parts of 64.
    accumulators = 5 * 64 * 2 * 256
    assert measured["head 256"] == row_sums + 2 * 4 * (accumulators + 3 * 4 * (4 + 128 * 64)) * 4


@pytest.mark.parametrize(
    ("capability", "forward", "backward", "grouped", "dropout_forward", "dropout_backward"),
    [
        # What plans of cuDNN 9.20 for these GPUs answer to get_workspace_size; 4 x 32 heads x 2048 x 128, bfloat16.
        ("9.0", 256, 135266560, 269484288, 256, 135266560),
        ("10.0", 0, 135266304, 269484160, 67108992, 202375296),
        ("8.0", 0, 269484160, 403701888, 0, 269484160),
    ],
)
def test_cudnn_takes_the_workspace_of_its_plans(
    capability: str, forward: int, backward: int, grouped: int, dropout_forward: int, dropout_backward: int
) -> None:
    assert answer("cudnn_memory", capability) == {
        "forward": forward,
        "backward": backward,
        "grouped backward": grouped,
        "dropout forward": dropout_forward,
        "dropout backward": dropout_backward,
    }


# ---- flash_attn


def test_transformers_finds_both_flash_attn_packages() -> None:
    assert answer("flash_attn_found") == {"2": True, "3": True, "4": False, "version": "2.8.3", "package": "flash_attn"}


def test_a_flash_attn_that_is_installed_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "flash_attn.py").write_text("__version__ = 'of the user'\n")
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    assert answer("flash_attn_version", environment=(("PYTHONPATH", path),)) == "of the user"


def test_flash_attn_allocates_what_its_kernels_do() -> None:
    measured = answer("flash_attn_memory")
    tokens, padded_head = 2 * 500 * 4, 64
    saved = 3 * tokens * padded_head * 2 + tokens * padded_head * 2 + 2 * 4 * 500 * 4
    random_state = 2 * 8
    assert measured["kept for backward"] == saved + random_state
    rows = 2 * 512 * 4
    gradient, padded_gradient = 3 * tokens * padded_head * 2, tokens * padded_head * 2
    assert measured["backward"] == gradient + padded_gradient + rows * 4 + rows * padded_head * 4


def test_flash_attn_3_accumulates_grouped_gradients_in_float32() -> None:
    measured = answer("flash_attn_memory")
    query_rows, key_rows = 2 * 512 * 8, 2 * 512 * 2
    accumulators = query_rows * 4 * 2 + query_rows * 128 * 4 + 2 * key_rows * 128 * 4 + 8 * 2 * 8 * 4
    assert measured["version 3 backward"] == 2 * 500 * (8 + 2 + 2) * 128 * 2 + accumulators


def test_flash_attn_refuses_what_its_kernels_refuse() -> None:
    refusals = answer("flash_attn_refusals")
    assert "fp16 and bf16" in refusals["float32"]
    assert "at most 256" in refusals["head 264"]
    assert "CUDA" in refusals["cpu"]


def test_a_model_trains_with_flash_attention_2_on_padded_and_packed_batches() -> None:
    trained = answer("flash_attn_model")
    assert trained["backend"] == "flash_attention_2"
    assert trained["without gradient"] == []
    assert trained["operators"]["aten::_flash_attention_forward"] >= 2


# ---- what runs inside of the rehearsal


def choices(cluster: Cluster) -> dict[str, int]:
    return {name: _choice(*case[:-1]) for name, case in CHOICES.items()}


def _choice(query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], what: dict[str, Any]) -> int:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dtype = getattr(torch, what.get("dtype", "bfloat16"))

    def tensor(sizes: tuple[int, ...]) -> torch.Tensor:
        made = torch.empty(sum(what.get(k, 0) for k in ("offset",)) + _elements(sizes), dtype=dtype, device="cuda")
        made = made[what.get("offset", 0) :].view(sizes)
        if what.get("turned"):
            made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
        return made.requires_grad_(what.get("gradient", False))

    mask = None
    if "mask" in what:
        mask = torch.empty(what["mask"], dtype=dtype, device="cuda", requires_grad=what.get("mask_gradient", False))
    tensors = (tensor(query), tensor(key), tensor(value))

    def choose() -> int:
        return int(
            torch._fused_sdp_choice(
                *tensors,
                mask,
                what.get("dropout_p", 0.0),
                what.get("is_causal", False),
                enable_gqa=what.get("gqa", False),
            )
        )

    if "only" in what:
        with sdpa_kernel(getattr(SDPBackend, what["only"])):
            return choose()
    if "off" in what:
        switch = getattr(torch.backends.cuda, f"enable_{what['off']}_sdp")
        switch(False)
        try:
            return choose()
        finally:
            switch(True)
    torch.use_deterministic_algorithms(what.get("deterministic", False))
    try:
        return choose()
    finally:
        torch.use_deterministic_algorithms(False)


def _elements(sizes: tuple[int, ...]) -> int:
    return functools.reduce(lambda left, right: left * right, sizes, 1)


def choices_by_cudnn(cluster: Cluster) -> dict[str, int]:
    """One process for each release, because torch settles the order once."""
    found = {}
    for version in (0, 91002, 91500, 91501, 92000):
        child = os.fork()
        if child == 0:
            cluster.backend._library.zk_set_cudnn_version(version)
            os._exit(_choice(_SQUARE, _SQUARE, _SQUARE, {}))
        found[str(version)] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found


def refusal(cluster: Cluster) -> str:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensor = torch.empty(_SQUARE, device="cuda")
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
    except RuntimeError as error:
        return str(error)
    return "accepted"


def meta_kernels(cluster: Cluster) -> dict[str, Any]:
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

    calls = []
    for batch, heads, key_heads, queries, keys, head, value_head in (
        (2, 8, 8, 256, 256, 64, 64),
        (3, 8, 2, 200, 200, 128, 128),
        (1, 4, 4, 65, 130, 40, 40),
        (2, 6, 6, 33, 70, 64, 32),
        (2, 4, 4, 1, 90, 256, 256),
        (2, 4, 4, 128, 128, 136, 136),
    ):
        for layout in ("plain", "transposed", "fused"):
            sizes = (batch, heads, queries, head), (batch, key_heads, keys, head), (batch, key_heads, keys, value_head)
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


def autograd(cluster: Cluster) -> list[str]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wrong = []
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
                        mask = torch.ones((96, 96), dtype=torch.bool if "bool" in what else dtype, device="cuda")
                    with sdpa_kernel([*SDPBackend.__members__.values()] if backend is None else backend):
                        out = attention(
                            q,
                            k,
                            v,
                            mask,
                            0.25 if what == "dropout" else 0.0,
                            what == "causal",
                            enable_gqa=what == "grouped",
                        )
                    out.sum().backward()
                    shapes = [tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in (q, k, v)]
                    if out.shape != q.shape or not all(shapes):
                        wrong.append(f"{head} {dtype} {what} {backend}")
    return wrong


def flops(cluster: Cluster) -> dict[str, list[float]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counted: dict[str, list[float]] = {"rehearsal": [], "torch": []}

    def both(run: Callable[[], Any]) -> None:
        before = cluster.backend.flops
        with FlopCounterMode(display=False) as counter:
            run()
        counted["rehearsal"].append(cluster.backend.flops - before)
        counted["torch"].append(counter.get_total_flops())

    q = torch.empty((2, 8, 300, 64), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            attention = torch.nn.functional.scaled_dot_product_attention
            both(lambda: attention(q, q, q).sum().backward())
    packed = torch.empty((300, 8, 64), dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 100, 300], dtype=torch.int32, device="cuda")
    both(
        lambda: torch.ops.aten._flash_attention_forward(packed, packed, packed, starts, starts, 200, 200, 0.0, True, False)
    )
    return counted


def _peak(run: Callable[[], Any], *, beyond: bool = True) -> int:
    """Bytes requested at the peak of `run`, beyond what it leaves behind or beyond what was there before."""
    import torch

    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    kept = run()
    stats = torch.cuda.memory_stats()
    after = stats["requested_bytes.all.current"]
    del kept
    return int(stats["requested_bytes.all.peak"] - (after if beyond else before))


def flash_memory(cluster: Cluster) -> dict[str, int]:
    import torch

    aten = torch.ops.aten

    def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=torch.bfloat16, device="cuda") for shape in shapes]

    q, k, v = tensors((2, 1000, 8, 72), (2, 1000, 2, 72), (2, 1000, 2, 72))
    out, lse, state, unused, _ = aten._flash_attention_forward(q, k, v, None, None, 1000, 1000, 0.0, True, False)

    def dense() -> Any:
        return aten._flash_attention_backward(
            torch_grad, q, k, v, out, lse, None, None, 1000, 1000, 0.0, True, state, unused
        )

    torch_grad = torch.empty_like(out)
    gradients = sum(gradient.untyped_storage().nbytes() for gradient in dense())
    packed = tensors((1300, 8, 72), (1300, 2, 72), (1300, 2, 72))
    starts = torch.tensor([0, 500, 1000, 1300], dtype=torch.int32, device="cuda")
    packed_out, packed_lse, *_ = aten._flash_attention_forward(*packed, starts, starts, 500, 500, 0.0, True, False)
    packed_grad = torch.empty_like(packed_out)
    short, *long = tensors((1, 64, 8, 128), (1, 4096, 8, 128), (1, 4096, 8, 128))
    many = tensors(*[(8, 2048, 32, 128)] * 3)
    return {
        "gradients": gradients,
        "dense": _peak(dense),
        "packed": _peak(
            lambda: aten._flash_attention_backward(
                packed_grad, *packed, packed_out, packed_lse, starts, starts, 500, 500, 0.0, True, state, unused
            )
        ),
        "split_forward": _peak(
            lambda: aten._flash_attention_forward(short, *long, None, None, 64, 4096, 0.0, False, False)
        ),
        "whole_forward": _peak(
            lambda: aten._flash_attention_forward(*many, None, None, 2048, 2048, 0.0, True, False)
        ),
    }


def efficient_memory(cluster: Cluster) -> dict[str, int]:
    import torch

    measured = {}
    aten = torch.ops.aten
    for name, dtype, head in (("bfloat16", torch.bfloat16, 64), ("float32", torch.float32, 64),
                              ("head 256", torch.bfloat16, 256)):  # fmt: skip
        q = torch.empty((2, 300, 4, head), dtype=dtype, device="cuda").transpose(1, 2)
        out = aten._scaled_dot_product_efficient_attention(q, q, q, None, True)
        grad = torch.empty_like(out[0])
        measured[name] = _peak(
            functools.partial(
                aten._scaled_dot_product_efficient_attention_backward,
                grad, q, q, q, None, *out, 0.0, [True, True, True, False],
            )  # fmt: skip
        )
    return measured


def cudnn_memory(cluster: Cluster) -> dict[str, int]:
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
        grad = torch.empty_like(out[0])
        backward = functools.partial(
            aten._scaled_dot_product_cudnn_attention_backward,
            grad, q, key, key, *out[:2], out[6], out[7], None, None, None, *out[4:6], dropout, True,
        )  # fmt: skip
        if not name.startswith("grouped"):
            measured[f"{name}forward"] = _peak(forward)
        measured[f"{name}backward"] = _peak(backward)
    return measured


def flash_attn_found(cluster: Cluster) -> dict[str, Any]:
    import importlib.metadata

    from zerokit.rehearsal.stand_ins import flash_attention

    flash_attention.install()
    import flash_attn
    from transformers.utils import import_utils

    assert callable(flash_attn.flash_attn_varlen_qkvpacked_func)
    return {
        "2": import_utils.is_flash_attn_2_available(),
        "3": import_utils.is_flash_attn_3_available(),
        "4": import_utils.is_flash_attn_4_available(),
        "version": importlib.metadata.version("flash_attn"),
        "package": flash_attn.__name__,
    }


def flash_attn_version(cluster: Cluster) -> str:
    from zerokit.rehearsal.stand_ins import flash_attention

    flash_attention.install()
    import flash_attn

    return str(flash_attn.__version__)


def flash_attn_memory(cluster: Cluster) -> dict[str, Any]:
    import torch

    from zerokit.rehearsal.stand_ins import flash_attention

    flash_attention.install()
    from flash_attn import flash_attn_func, flash_attn_qkvpacked_func
    from flash_attn_interface import flash_attn_func as flash_attn_3_func

    def requested() -> int:
        return int(torch.cuda.memory_stats()["requested_bytes.all.current"])

    qkv = torch.empty((2, 500, 3, 4, 60), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    before = requested()
    out = flash_attn_qkvpacked_func(qkv, causal=True)
    kept = requested() - before
    grad = torch.empty_like(out)
    backward = _peak(lambda: out.backward(grad), beyond=False)
    assert qkv.grad is not None
    assert qkv.grad.shape == qkv.shape
    q, k, v = (
        torch.empty((2, 500, heads, 128), dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for heads in (8, 2, 2)
    )
    third = flash_attn_3_func(q, k, v, causal=True)
    third_grad = torch.empty_like(third)
    version_3 = _peak(lambda: third.backward(third_grad), beyond=False)
    with torch.no_grad():
        assert flash_attn_func(q, k, v, return_attn_probs=True)[1].shape == (2, 8, 500)
    return {
        "kept for backward": kept,
        "backward": backward,
        "version 3 backward": version_3,
    }


def flash_attn_refusals(cluster: Cluster) -> dict[str, str]:
    import torch

    from zerokit.rehearsal.stand_ins import flash_attention

    flash_attention.install()
    from flash_attn import flash_attn_func

    refusals = {}
    for name, tensor in (
        ("float32", torch.empty((1, 64, 4, 64), device="cuda")),
        ("head 264", torch.empty((1, 64, 4, 264), device="cuda", dtype=torch.bfloat16)),
        ("cpu", torch.empty((1, 64, 4, 64), dtype=torch.bfloat16)),
    ):
        try:
            flash_attn_func(tensor, tensor, tensor)
        except RuntimeError as error:
            refusals[name] = str(error)
    return refusals


def flash_attn_model(cluster: Cluster) -> dict[str, Any]:
    import torch

    from zerokit.rehearsal.stand_ins import flash_attention

    flash_attention.install()
    from torch.utils._python_dispatch import TorchDispatchMode
    from transformers import LlamaConfig, LlamaForCausalLM

    operators: dict[str, int] = {}

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators[func.name()] = operators.get(func.name(), 0) + 1
            return func(*args, **(kwargs or {}))

    config = LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="flash_attention_2",
    )
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    tokens = torch.arange(80, device="cuda").view(2, 40)
    mask = torch.ones_like(tokens)
    mask[1, 30:] = 0
    with Counting():
        model(tokens, attention_mask=mask, labels=tokens).loss.backward()
        positions = torch.cat([torch.arange(30), torch.arange(10)]).to("cuda")[None]
        model(tokens[:1], position_ids=positions, labels=tokens[:1]).loss.backward()
    return {
        "backend": model.config._attn_implementation,
        "without gradient": [name for name, parameter in model.named_parameters() if parameter.grad is None],
        "operators": operators,
    }


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    question.__name__: question
    for question in (
        choices,
        choices_by_cudnn,
        refusal,
        meta_kernels,
        autograd,
        flops,
        flash_memory,
        efficient_memory,
        cudnn_memory,
        flash_attn_found,
        flash_attn_version,
        flash_attn_memory,
        flash_attn_refusals,
        flash_attn_model,
    )
}


def main(question: str, capability: str) -> None:
    from zerokit.rehearsal import virtual_cluster
    from zerokit.rehearsal.cuda import VirtualDevice

    major, _, minor = capability.partition(".")
    device = VirtualDevice(capability=(int(major), int(minor)))
    with virtual_cluster(num_gpus=8, device=device) as cluster:
        print(json.dumps(QUESTIONS[question](cluster)))
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
