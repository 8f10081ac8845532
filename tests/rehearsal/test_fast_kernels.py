"""Kernels in the place of torch's own, and torch.compile."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from tests.rehearsal.questions import answer, compared_with_meta

if TYPE_CHECKING:
    import torch

    from zerokit.rehearsal import VirtualRank

# ---- kernels of native/fast_kernels.cpp

Call = Callable[["torch.device"], Any]


def meta_kernels(rank: VirtualRank) -> Any:
    return compared_with_meta(_calls(), _layout)


def _layout(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{tuple(tensor.shape)} {tensor.stride()} {tensor.dtype}"


def _calls() -> Iterator[tuple[str, Call]]:
    """Large inputs, for which nothing is computed: plain ones, and those that must go the usual way."""
    import torch

    shapes = [((4, 128, 1024), (1024,)), ((64, 32, 64), (32, 64)), ((40000,), (40000,)), ((1, 1, 65536), (65536,))]
    dtypes = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
    for (shape, normalized), dtype in itertools.product(shapes, dtypes):
        for has_weight, transposed in itertools.product((True, False), (True, False)):
            make = functools.partial(_normalized, shape, normalized, dtype, has_weight, transposed)
            label = f"{shape} {dtype} weight={has_weight} transposed={transposed}"
            for operator in ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward"):
                yield f"{operator} {label}", functools.partial(make, operator)
        for operator in ("dropout", "no_dropout", "dropout_backward", "relu", "relu_transposed"):
            yield f"{operator} {shape} {dtype}", functools.partial(_elementwise, shape, dtype, operator)


def _normalized(
    shape: tuple[int, ...],
    normalized: tuple[int, ...],
    dtype: torch.dtype,
    has_weight: bool,
    transposed: bool,
    operator: str,
    device: torch.device,
) -> Any:
    import torch

    aten = torch.ops.aten
    inputs = torch.empty(shape, dtype=dtype, device=device)
    if transposed and len(shape) == 3:
        inputs = torch.empty((shape[1], shape[0], shape[2]), dtype=dtype, device=device).transpose(0, 1)
    weight = torch.empty(normalized, dtype=dtype, device=device) if has_weight else None
    gradient = torch.empty(shape, dtype=dtype, device=device)
    if operator.startswith("rms_norm"):
        results = aten._fused_rms_norm(inputs, normalized, weight, 1e-5)
        backward, weights, wanted = aten._fused_rms_norm_backward, [weight], [True, has_weight]
    else:
        results = aten.native_layer_norm(inputs, normalized, weight, weight, 1e-5)
        backward, weights = aten.native_layer_norm_backward, [weight, weight]
        wanted = [True, has_weight, False]
    if not operator.endswith("backward"):
        return results
    return backward(gradient, inputs, normalized, *results[1:], *weights, wanted)


def _elementwise(shape: tuple[int, ...], dtype: torch.dtype, operator: str, device: torch.device) -> Any:
    import torch

    inputs = torch.empty(shape, dtype=dtype, device=device)
    if operator == "relu":
        return inputs.relu()
    if operator == "relu_transposed":
        return inputs.mT.relu() if inputs.dim() > 1 else inputs[::2].relu()
    if operator == "dropout_backward":
        mask = torch.empty(shape, dtype=torch.bool, device=device)
        return torch.ops.aten.native_dropout_backward(inputs, mask, 1.25)
    return torch.ops.aten.native_dropout(inputs, 0.2, operator == "dropout")


def small_values(rank: VirtualRank) -> dict[str, bool]:
    """Whether small tensors hold on the device what they would on the host, and stay apart from it."""
    import torch
    from torch.nn import functional

    inputs = torch.linspace(-3, 5, 512).view(4, 128)
    weight = torch.linspace(0.5, 2, 128)
    calls: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "layer_norm": lambda tensor, scale: functional.layer_norm(tensor, (128,), scale, scale),
        "rms_norm": lambda tensor, scale: functional.rms_norm(tensor, (128,), scale),
        "relu": lambda tensor, _: functional.relu(tensor),
    }
    half = inputs.cuda().half().requires_grad_()  # for which the CPU has no kernel with a result of fp32
    functional.log_softmax(half, dim=-1, dtype=torch.float32).sum().backward()
    ids = torch.tensor([[1, 2]])
    table = weight.view(8, 16).cuda()
    with contextlib.suppress(RuntimeError):  # as on a GPU, where only x[ids] takes ids of the host
        raise AssertionError(functional.embedding(ids, table))
    return {
        name: torch.allclose(call(inputs.cuda(), weight.cuda()).cpu(), call(inputs, weight), atol=1e-5)
        for name, call in calls.items()
    } | {
        "half": half.grad is not None and half.grad.dtype == torch.float16,
        "host_ids": torch.equal(table[ids].cpu(), table.cpu()[ids]),
    }


def made_up_statistics(rank: VirtualRank) -> list[list[float]]:
    """Small results of large inputs are made up, as those of all operators are: 1."""
    import torch

    _, mean, deviation = torch.ops.aten.native_layer_norm(
        torch.empty((8, 65536), device="cuda"), (65536,), None, None, 1e-5
    )
    return [mean.flatten().tolist(), deviation.flatten().tolist()]


def operators_on_record(rank: VirtualRank) -> list[str]:
    """Which of the fast kernels' names the recording has for blocks that they made."""
    import torch

    module = torch.nn.Sequential(torch.nn.LayerNorm(4096), torch.nn.Dropout(0.1), torch.nn.ReLU()).cuda()
    module(torch.empty((64, 4096), device="cuda")).sum().backward()
    recording = rank.recording()
    return sorted({recording.ops[index] for index in recording.blocks["op"] if index >= 0})


# ---- compiling.py


def compiled(rank: VirtualRank) -> dict[str, Any]:
    """What compiled functions and models hold, in bytes, and what is said of what is left out."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    def waves(tensor: torch.Tensor) -> torch.Tensor:
        return ((tensor * 2).sin() * 3).cos()

    def peak_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[int]:
        """Most that a call holds, what is kept for backward with the result, and most of backward."""
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = function(*inputs)
        found = [torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before]
        torch.cuda.reset_peak_memory_stats()
        result.backward(torch.ones_like(result))
        return [*found, torch.cuda.max_memory_allocated() - before]

    def leaf(*shape: int) -> torch.Tensor:
        return torch.ones(*shape, device="cuda", requires_grad=True)

    def scaled(tensor: torch.Tensor) -> torch.Tensor:
        return tensor * torch.cuda.get_device_properties("cuda").multi_processor_count

    def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    layer = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()).cuda()
    layer = torch.compile(layer, mode="reduce-overhead")
    heads = [leaf(1, 2, 1024, 64) for _ in range(3)]
    found = {
        "written": peak_of(waves, leaf(1024, 1024)),
        "compiled": peak_of(torch.compile(waves), leaf(1024, 1024)),
        "shape": list(layer(leaf(1024, 256)).shape),
        "attention": peak_of(torch.compile(flex_attention), *heads),
        "properties": list(torch.compile(scaled, fullgraph=True)(leaf(4)).shape),
        "scripted": list(torch.jit.script(loss_of)(leaf(4, 8), torch.arange(4, device="cuda")).shape),
    }
    sites = [site for site in rank.recording().sites if "test_fast_kernels.py" not in site]
    with mock.patch("torch._inductor.compile_fx.compile_fx", side_effect=RuntimeError("no such lowering")):
        torch._dynamo.reset()
        found["not compiled"] = peak_of(torch.compile(waves), leaf(1024, 1024))
        torch._dynamo.reset()
        try:
            torch.compile(flex_attention)(*heads)
        except Exception as error:
            found["refused"] = str(error)
    found["measuring"] = []
    from torch._inductor import compile_fx, config

    compile_pass = compile_fx.fx_codegen_and_compile

    def fails_backward(*given: Any, is_backward: bool = False, **named: Any) -> Any:
        found["measuring"].append(config.coordinate_descent_tuning)
        if is_backward:
            raise RuntimeError("no such kernel")
        return compile_pass(*given, is_backward=is_backward, **named)

    with (
        mock.patch.object(compile_fx, "fx_codegen_and_compile", fails_backward),
        config.patch(coordinate_descent_tuning=True, force_disable_caches=True),
    ):
        torch._dynamo.reset()
        found["backward as written"] = peak_of(torch.compile(waves), leaf(1024, 1024))
    warnings = [warning for warning in rank.recording().warnings if "torch.compile" in warning]
    return {**found, "warnings": warnings, "sites": sites}


def ctc_losses(_rank: VirtualRank) -> Any:
    """Shapes of losses and gradients, strides, and bytes beside, by where lengths are and how targets are given."""
    import torch

    found = []
    for place, targets in itertools.product(("cuda", "cpu"), ((4, 10), (40,))):
        log_probs = torch.randn(4, 500, 32, device="cuda", requires_grad=True).transpose(0, 1)
        lengths = (torch.full((4,), length, device=place) for length in (500, 10))
        loss = torch.nn.functional.ctc_loss(log_probs, torch.ones(targets).long().cuda(), *lengths, reduction="none")
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        (gradient,) = torch.autograd.grad(loss.sum(), log_probs)
        beside = torch.cuda.max_memory_allocated() - held - 4 * gradient.numel()
        found.append([*loss.shape, *gradient.shape, *gradient.stride(), beside])
    return found


def test_a_ctc_loss_has_rules_of_its_own_as_torch_has_no_meta_kernels_for_it() -> None:
    log_beta, of_sums = 500 * 4 * (2 * 10 + 1) * 4, 2 * 512
    found = answer(ctc_losses)
    assert [one[:-1] for one in found] == [[4, 500, 4, 32, 128, 32, 1]] * 4
    assert all(log_beta <= one[-1] <= log_beta + of_sums + 512 for one in found)


def test_results_have_the_layout_of_torchs_own_meta_kernels() -> None:
    compared = answer(meta_kernels)
    assert compared["differences"] == []
    assert compared["tensors"] > 500


def test_small_tensors_are_computed_and_small_results_of_large_inputs_made_up() -> None:
    same = ("layer_norm", "rms_norm", "relu", "half", "host_ids")
    assert answer(small_values) == dict.fromkeys(same, True)
    assert answer(made_up_statistics) == [[1.0] * 8, [1.0] * 8]


def test_the_recording_names_the_operators() -> None:
    expected = {
        "aten::native_layer_norm",
        "aten::native_layer_norm_backward",
        "aten::native_dropout",
        "aten::native_dropout_backward",
        "aten::relu",
    }
    assert expected <= set(answer(operators_on_record))


MATRIX = 1024 * 1024 * 4


def test_compiled_code_allocates_as_on_a_gpu_and_is_counted_where_it_is_called() -> None:
    found = answer(compiled, forked=False)
    # As written, the inputs of sine and cosine wait for backward beside the result.
    assert found["written"][:2] == [3 * MATRIX, 3 * MATRIX]
    assert found["compiled"] == [MATRIX, MATRIX, 3 * MATRIX]
    assert found["shape"] == [1024, 256]
    scores = 2 * 1024 * 1024 * 4
    assert max(found["attention"]) < scores
    assert found["properties"] == [4]  # of the card are constants
    assert found["scripted"] == [4]  # TorchScript compiles the original of a wrapped loss
    assert not [site for site in found["sites"] if "Runner" in site]


def test_a_graph_that_is_not_compiled_runs_as_it_is_written_and_the_report_says_so() -> None:
    found = answer(compiled, forked=False)
    assert found["not compiled"] == found["written"]
    graphs, left_out, backward = found["warnings"]
    assert "CUDA graphs" in graphs
    assert "RuntimeError: no such lowering" in left_out
    assert "RuntimeError: no such kernel" in backward
    assert all("test_fast_kernels.py" in warning for warning in found["warnings"])


def test_a_backward_pass_is_measured_nowhere_and_runs_as_written_if_it_is_not_compiled() -> None:
    found = answer(compiled, forked=False)
    assert set(found["measuring"]) == {False}
    assert found["backward as written"][:2] == found["compiled"][:2]
    assert found["backward as written"][2] >= found["compiled"][2]


def test_what_is_another_algorithm_when_it_is_not_compiled_is_refused() -> None:
    assert "cannot stand in for torch.compile of flex_attention" in answer(compiled, forked=False)["refused"]
