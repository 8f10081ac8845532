"""Stand-ins for packages that few scripts need, compiled with CUDA's toolkit: what they allocate.

The imports in these functions are what makes the packages be found: nothing is done without them.
"""

from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from tests.rehearsal.questions import answer, peak, requested

if TYPE_CHECKING:
    from zerokit.rehearsal import VirtualRank


def packages_found(rank: VirtualRank) -> dict[str, Any]:
    """What is found of Apex before and after the script imports it, and what the report says."""
    from transformers.utils import import_utils

    from zerokit.rehearsal.context import rank_context
    from zerokit.rehearsal.worker.failures import limit_of

    def found() -> list[Any]:
        import_utils.is_apex_available.cache_clear()
        try:
            known = version("apex")
        except PackageNotFoundError:
            known = None
        return [importlib.util.find_spec("apex") is not None, known, import_utils.is_apex_available()]

    before = found()
    try:
        import apex as caught
    except ImportError:
        caught = None
    import apex

    answers = {"before": before, "caught": caught is not None, "after": found()}
    assert apex.optimizers.FusedAdam.__name__ == "FusedAdam"
    try:
        from apex.contrib.xentropy import SoftmaxCrossEntropyLoss  # noqa: F401
    except ImportError as error:
        answers["limit"] = str(limit_of(error))
    try:
        import transformer_engine  # noqa: F401
    except ImportError as error:
        answers["refused"] = str(limit_of(error))
    return answers | {"said": rank_context().warnings()}


def flash_attention_csrc(rank: VirtualRank) -> dict[str, Any]:
    """Kernels that flash-attn's csrc has beside attention, each an extension of its own."""
    import dropout_layer_norm
    import rotary_emb
    import torch
    import xentropy_cuda_lib

    x = torch.empty((1000, 256), dtype=torch.bfloat16, device="cuda")
    weight = torch.empty(256, device="cuda")
    nothing = [None] * 6
    before = requested()
    plain = dropout_layer_norm.dropout_add_ln_fwd(x, None, weight, *nothing[:5], 0.0, 1e-5, 1.0, 0, None)
    of_plain, before = requested() - before, requested()
    summed = dropout_layer_norm.dropout_add_ln_fwd(
        x, x, weight, *nothing[:5], 0.1, 1e-5, 1.0, 0, None, is_rms_norm=True
    )
    of_summed, before = requested() - before, requested()
    gradients = dropout_layer_norm.dropout_add_ln_bwd(
        x, x, x, None, summed[2], *summed[3:], weight, *nothing[:4], 0.1, 1.0, 0, True
    )
    of_gradients = requested() - before
    parts = sum(part.nbytes for part in gradients[4:])
    logits = torch.empty((100, 64), device="cuda")
    labels = torch.zeros(100, dtype=torch.int64, device="cuda")
    losses, sums = xentropy_cuda_lib.forward(logits, labels, 0.0)
    in_place = xentropy_cuda_lib.backward(losses, logits, sums, labels, 0.0, True)
    elsewhere = xentropy_cuda_lib.backward(losses, logits, sums, labels, 0.0, False, total_classes=64)
    halves = [torch.empty((2, 10, 4, 32), device="cuda") for _ in range(4)]
    angles = [torch.empty((10, 1, 32), device="cuda") for _ in range(2)]
    before = requested()
    assert rotary_emb.apply_rotary(*halves[:2], *angles, *halves[2:], False) is None
    refused = []
    for wrong in (halves[0].bfloat16(), halves[0][:1], halves[0].cpu()):
        try:
            rotary_emb.apply_rotary(halves[0], wrong, *angles, *halves[2:], False)
        except RuntimeError as error:
            refused.append(str(error))
    return {
        "plain": [one is not None for one in plain],
        "of plain": of_plain,
        "of summed": of_summed,
        "of gradients": of_gradients - parts,
        "rotary": requested() - before,
        "losses": [list(losses.shape), str(losses.dtype), str(sums.dtype)],
        "in place": [in_place is logits, elsewhere is logits],
        "refused": refused,
    }


def _kept_and_at_peak(layer: Any, x: Any, *, lets_go: bool) -> list[Any]:
    """Bytes after a forward, at the peak of the backward, and the output's dtype.

    Args:
        layer: of which.
        x: its input.
        lets_go: whether a copy is its input that nothing else keeps.
    """
    import torch

    x.grad = None
    own = x * 1 if lets_go else x
    before = requested()
    out = layer(own)
    del own
    kept = requested() - before
    grad = torch.empty_like(out)
    return [kept, peak(lambda: torch.autograd.backward(out, grad), beyond_results=False), str(out.dtype)]


def apex_norms(rank: VirtualRank) -> dict[str, Any]:
    import torch
    from apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedRMSNorm

    x = torch.empty((1000, 256), dtype=torch.bfloat16, device="cuda", requires_grad=True)
    found: dict[str, Any] = {}
    for name, layer in {
        "layer": FusedLayerNorm(256).bfloat16(),
        "rms": FusedRMSNorm(256).bfloat16(),
        "plain": FusedRMSNorm(256, elementwise_affine=False),
        "efficient": FusedLayerNorm(256, memory_efficient=True).bfloat16(),
        "mixed": MixedFusedRMSNorm(256, sequence_parallel=True),
    }.items():
        found[name] = _kept_and_at_peak(layer.cuda(), x, lets_go=name == "efficient")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found["cast"] = str(FusedRMSNorm(256).cuda()(x.detach().float()).dtype)
    found["on the host"] = list(FusedLayerNorm(8)(torch.ones(2, 8)).shape)
    return found


def apex_adam(rank: VirtualRank) -> dict[str, Any]:
    import torch
    from apex.optimizers import FusedAdam

    parameter = torch.nn.Parameter(torch.empty(10**6, dtype=torch.bfloat16, device="cuda"))
    optimizer = FusedAdam([parameter], betas=(0.9, 0.95))
    parameter.grad = torch.empty_like(parameter)
    before = requested()
    at_peak = peak(optimizer.step, beyond_results=False)
    optimizer.step()
    found = {"kept": requested() - before, "at peak": at_peak}
    optimizer.zero_grad()
    return {**found, "is freed": parameter.grad is None}


def functions_refused_when_called(rank: VirtualRank) -> list[str]:
    import amp_C
    import fused_weight_gradient_mlp_cuda
    from apex.optimizers import FusedSGD
    from grouped_gemm import ops

    from zerokit.rehearsal.errors import RehearsalGap

    refused = []
    for function in (
        amp_C.multi_tensor_l2norm,
        fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32,
        FusedSGD,
        ops.gmm,
    ):
        try:
            function()
        except RehearsalGap as error:
            refused.append(error.operation)
    return refused


def kernels_on_the_clock(rank: VirtualRank) -> dict[str, list[float]]:
    """Bytes that kernels of stand-ins move, by kernel, as the clock receives them."""
    from types import SimpleNamespace

    import rotary_emb
    import torch
    from apex.normalization import FusedRMSNorm
    from apex.optimizers import FusedAdam

    from zerokit.rehearsal.context import rank_context
    from zerokit.rehearsal.timing.rank_time import Timing

    moved_by: dict[str, list[float]] = {}
    clock = SimpleNamespace(kernel=lambda name, moved: moved_by.setdefault(name, []).append(moved))
    rank_context().state(Timing).time = clock  # type: ignore[assignment]
    weight = torch.nn.Parameter(torch.empty(1000, device="cuda"))
    weight.grad = torch.empty_like(weight)
    FusedAdam([weight]).step()
    halves = [torch.empty((10, 2, 32), device="cuda") for _ in range(4)]
    angles = [torch.empty((10, 1, 32), device="cuda") for _ in range(2)]
    rotary_emb.apply_rotary(*halves[:2], *angles, *halves[2:], False)
    FusedRMSNorm(64).cuda()(torch.empty((10, 64), device="cuda"))
    return moved_by


# ---- the tests


def test_norms_and_losses_of_flash_attentions_csrc_allocate_what_the_compiled_ones_do() -> None:
    found = answer(flash_attention_csrc)
    rows, numbers = 1000, 1000 * 256
    assert found["plain"] == [True, False, False, True, True]  # no sum, no mask
    assert found["of plain"] == numbers * 2 + 2 * rows * 4
    assert found["of summed"] == 2 * numbers * 2 + numbers + 2 * rows * 4
    assert found["of gradients"] == 2 * numbers * 2 + 2 * 256 * 4
    assert found["losses"] == [[100], "torch.float32", "torch.float32"]
    assert found["in place"] == [True, False]
    assert found["rotary"] == 0
    differing, shaped, placed = found["refused"]
    assert "torch.bfloat16" in differing
    assert "shapes" in shaped
    assert placed == "x2 must be on CUDA"


def test_norms_of_apex_keep_what_apex_keeps() -> None:
    found = answer(apex_norms)
    rows, numbers, parts = 1000, 1000 * 256, 16 * 256 * 4
    out, figure = numbers * 2, rows * 4
    assert found["layer"][0] == out + 2 * figure
    assert found["rms"][0] == out + figure
    assert found["plain"][0] == out + figure
    assert found["efficient"][0] == figure  # the output is kept, the input let go of
    assert found["mixed"][0] == 2 * out + figure
    assert [found[name][2] for name in ("layer", "mixed")] == ["torch.bfloat16", "torch.float32"]
    assert found["rms"][1] == out + 256 * 2 + parts
    assert found["layer"][1] == out + 2 * 256 * 2 + 2 * parts
    assert found["cast"] == "torch.bfloat16"
    assert found["on the host"] == [2, 8]


def test_adam_of_apex_has_its_states_in_float32() -> None:
    found = answer(apex_adam)
    numbers = 10**6
    assert found == {"kept": 2 * numbers * 4, "at peak": 2 * numbers * 4 + numbers * 2, "is freed": True}


def test_functions_of_modules_without_kernels_are_refused_when_they_are_called() -> None:
    assert answer(functions_refused_when_called) == [
        "amp_C.multi_tensor_l2norm",
        "fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32",
        "apex.optimizers.FusedSGD",
        "grouped_gemm.ops.gmm",
    ]


def test_their_kernels_take_time_on_the_clock() -> None:
    moved_by = answer(kernels_on_the_clock)
    assert moved_by["multi_tensor_adam"] == [1000 * 4 * (1 + 2 * 3)]  # gradients are read, the others written, too
    assert moved_by["apply_rotary"] == [4 * 10 * 2 * 32 * 4 + 2 * 10 * 32 * 4]
    assert moved_by["cuApplyLayerNorm"] == [3 * 10 * 64 * 4 + 64 * 4]
