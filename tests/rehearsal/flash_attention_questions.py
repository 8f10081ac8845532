"""What tests of the flash-attn stand-in ask a rehearsal."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tests.rehearsal.questions import peak, requested
from zerokit.errors import ZerokitError

if TYPE_CHECKING:
    from zerokit.rehearsal import VirtualRank


def flash_attn_found(rank: VirtualRank) -> dict[str, Any]:
    import importlib.metadata

    flash_attn = importlib.import_module("flash_attn")
    from transformers.utils import import_utils

    assert callable(flash_attn.flash_attn_varlen_qkvpacked_func)
    return {
        "2": import_utils.is_flash_attn_2_available(),
        "3": import_utils.is_flash_attn_3_available(),
        "4": import_utils.is_flash_attn_4_available(),
        "version": importlib.metadata.version("flash_attn"),
        "package": flash_attn.__name__,
    }


def flash_attn_version(rank: VirtualRank) -> str:
    return str(importlib.import_module("flash_attn").__version__)


def hub_kernels(rank: VirtualRank) -> dict[str, Any]:
    """What comes of the package `kernels` of the environment: of one release before and one after 0.15."""
    import inspect

    import torch

    from zerokit.rehearsal.context import rank_context
    from zerokit.rehearsal.worker.failures import limit_of

    kernels = importlib.import_module("kernels")
    q = torch.empty((1, 256, 4, 128), dtype=torch.bfloat16, device="cuda")
    third = kernels.get_kernel("someone/flash-attention-3", version=1).flash_attn_interface
    with_sinks = kernels.get_kernel("kernels-community/vllm-flash-attn3", version=1)
    found = {
        "2": list(kernels.get_kernel("kernels-community/flash-attn2", "v1").flash_attn_func(q, q, q).shape),
        "3": list(third.flash_attn_func(q, q, q, causal=True, window_size=(64, 0)).shape),
        "sinks": list(with_sinks.flash_attn_func(q, q, q, s_aux=q[0, 0, :, 0]).shape),
        "with sinks": "s_aux" in inspect.signature(with_sinks.flash_attn_varlen_func).parameters,
        "without": "s_aux" in inspect.signature(third.flash_attn_varlen_func).parameters,
        "has": [kernels.has_kernel(name) for name in ("kernels-community/flash-attn3", "someone/relu")],
    }
    found["lacks"] = hasattr(third, "supports_nothing")
    try:
        third._flash_attn_forward(q, q, q)
    except AttributeError as error:
        found["limit"] = str(limit_of(error))
    for name, given in (("kernels-community/flash-attn3", {}), ("someone/relu", {"version": 1})):
        try:
            found[name] = kernels.get_kernel(name, **given).__name__
        except OSError as error:
            found[name] = str(error)
    return found | {"said": rank_context().warnings()}


def flash_attn_memory(rank: VirtualRank) -> dict[str, Any]:
    import torch

    flash_attn = importlib.import_module("flash_attn")
    flash_attn_3 = importlib.import_module("flash_attn_interface")

    qkv = torch.empty((2, 500, 3, 4, 60), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    before = requested()
    out = flash_attn.flash_attn_qkvpacked_func(qkv, causal=True)
    kept = requested() - before
    grad = torch.empty_like(out)
    backward = peak(lambda: torch.autograd.backward(out, grad), beyond_results=False)
    assert qkv.grad is not None
    assert qkv.grad.shape == qkv.shape
    q, k, v = (
        torch.empty((2, 500, heads, 128), dtype=torch.bfloat16, device="cuda", requires_grad=True)
        for heads in (8, 2, 2)
    )
    third = flash_attn_3.flash_attn_func(q, k, v, causal=True)
    third_grad = torch.empty_like(third)
    version_3 = peak(lambda: torch.autograd.backward(third, third_grad), beyond_results=False)
    with torch.no_grad():
        assert flash_attn.flash_attn_func(q, k, v, return_attn_probs=True)[1].shape == (2, 8, 500)
    return {"kept for backward": kept, "backward": backward, "version 3 backward": version_3, **_norm_memory()}


def flash_attn_4_memory(rank: VirtualRank) -> dict[str, Any]:
    """Working memory of a backward whose key heads are fewer, of equal and of packed sequences."""
    import torch

    cute = importlib.import_module("flash_attn.cute")

    def tensors(*shape: int) -> list[Any]:
        made = (*shape, 8, 128), (*shape, 2, 128), (*shape, 2, 128)
        return [torch.empty(each, dtype=torch.bfloat16, device="cuda", requires_grad=True) for each in made]

    def backward(out: Any) -> int:
        grad = torch.empty_like(out)
        return peak(lambda: torch.autograd.backward(out, grad), beyond_results=False)

    equal, lse = cute.flash_attn_func(*tensors(2, 500), causal=True)
    lengths = torch.tensor([0, 300, 500], dtype=torch.int32, device="cuda")
    packed, _ = cute.flash_attn_varlen_func(
        *tensors(500), cu_seqlens_q=lengths, cu_seqlens_k=lengths, max_seqlen_q=300, max_seqlen_k=300
    )
    sink = torch.zeros(8, device="cuda", requires_grad=True)
    out, _ = cute.flash_attn_func(*tensors(2, 500), learnable_sink=sink, window_size=(None, 0))
    torch.autograd.backward(out, torch.empty_like(out))
    assert sink.grad is not None
    found = {"lse": list(lse.shape), "equal": backward(equal), "packed": backward(packed)}
    try:
        cute.flash_attn_func(*tensors(2, 500), qv=equal)
    except ZerokitError as error:
        found["refused"] = str(error)
    return found


def _norm_memory() -> dict[str, int]:
    """Of a norm with a residual in float32, as Mamba and picotron call it."""
    import torch

    norms = importlib.import_module("flash_attn.ops.triton.layer_norm")
    losses = importlib.import_module("flash_attn.losses.cross_entropy")
    x = torch.empty((2, 500, 256), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    residual = torch.empty((2, 500, 256), device="cuda", requires_grad=True)
    norm = norms.RMSNorm(256, device="cuda", dtype=torch.bfloat16)
    before = requested()
    out, kept = norm(x, residual=residual, prenorm=True)
    forward = requested() - before
    grads = torch.empty_like(out), torch.empty_like(kept)
    before = requested()
    torch.autograd.backward([out, kept], grads)
    gradients = requested() - before
    assert x.grad is not None
    assert residual.grad is not None
    logits = torch.empty((10, 64), device="cuda", requires_grad=True)
    loss = losses.CrossEntropyLoss()(logits, torch.zeros(10, dtype=torch.int64, device="cuda"))
    torch.autograd.backward(loss)
    assert logits.grad is not None
    return {"norm": forward, "gradients of norm": gradients}


def flash_attn_refusals(rank: VirtualRank) -> dict[str, str]:
    import torch

    flash_attn = importlib.import_module("flash_attn")
    refusals = {}
    for name, tensor in (
        ("float32", torch.empty((1, 64, 4, 64), device="cuda")),
        ("head 264", torch.empty((1, 64, 4, 264), device="cuda", dtype=torch.bfloat16)),
        ("cpu", torch.empty((1, 64, 4, 64), dtype=torch.bfloat16)),
    ):
        try:
            flash_attn.flash_attn_func(tensor, tensor, tensor)
        except RuntimeError as error:
            refusals[name] = str(error)
    return refusals


def flash_attn_4_refusal(rank: VirtualRank) -> str:
    """On which pass of which function a card without FlashAttention 4 fails."""
    import torch

    q, k, v = (torch.empty((1, 64, 4, 64), dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in "qkv")
    out = None
    try:
        out, _ = importlib.import_module("flash_attn.cute").flash_attn_func(q, k, v)
        torch.autograd.backward(out, torch.empty_like(out))
    except AssertionError as error:
        return f"{'forward' if out is None else 'backward'}: {error}"
    return ""


def flash_attn_model(rank: VirtualRank) -> dict[str, Any]:
    return _model(rank, "flash_attention_2")


def flash_attn_4_model(rank: VirtualRank) -> dict[str, Any]:
    return _model(rank, "flash_attention_4")


def _model(rank: VirtualRank, implementation: str) -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation=implementation,
    )
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    tokens = torch.arange(80, device="cuda").view(2, 40)
    mask = torch.ones_like(tokens)
    mask[1, 30:] = 0
    torch.autograd.backward(model(tokens, attention_mask=mask, labels=tokens).loss)
    positions = torch.cat([torch.arange(30), torch.arange(10)]).to("cuda")[None]
    torch.autograd.backward(model(tokens[:1], position_ids=positions, labels=tokens[:1]).loss)
    return {
        "backend": model.config._attn_implementation,
        "without gradient": [name for name, parameter in model.named_parameters() if parameter.grad is None],
        "operators": rank.backend.operator_names(),
    }
