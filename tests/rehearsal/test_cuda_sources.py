"""Sources of CUDA extensions: what is read does what a compiler would make of it, all else is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from tests.rehearsal.commands import SCRIPTS, rehearse

PLAIN = r"""
#include <torch/extension.h>
#define THREADS 256
#define CHECK_DIM(x, n) TORCH_CHECK(x.dim() == n, #x " must have ", n, " dimensions")
#ifdef HALVES
constexpr int kParts = 2;
#elif defined(THIRDS) && THIRDS > 0
constexpr int kParts = 3;
#else
constexpr int kParts = 1;
#endif
namespace {
template <typename scalar_t, int TILE>
__global__ void __launch_bounds__(THREADS) scale(
    const scalar_t* __restrict__ from, scalar_t *to, int64_t count) {
    for (int i = blockIdx.x; i < count; i += gridDim.x) { to[i] = from[i] >> 1; }
}
inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }
template <typename scalar_t, int TILE>
void launch_scale(const torch::Tensor& x, torch::Tensor out, cudaStream_t stream) {
    const dim3 blocks(static_cast<unsigned int>(ceil_div(x.numel(), (int64_t)TILE)), 1);
    scale<scalar_t, TILE><<<blocks, dim3(THREADS), 0, stream>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
}  // namespace
std::vector<torch::Tensor> forward(
    torch::Tensor x, double rate, c10::optional<at::Tensor> bias = c10::nullopt) {
    CHECK_DIM(x, 2);
    const int64_t rows = x.size(0), columns = x.sizes()[1];
    auto options = x.options().dtype(torch::kFloat64);
    auto sums = torch::zeros({ceil_div(rows, 2), kParts}, options);
    auto out = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    if (x.scalar_type() == torch::kFloat32 && rows > 0) {
        launch_scale<float, THREADS>(x, out, stream);
    } else if (x.scalar_type() == at::ScalarType::Half) {
        launch_scale<at::Half, THREADS>(x, out, stream);
    } else {
        TORCH_CHECK(false, "no kernel for ", "this dtype");
    }
    int64_t chunk = std::min<int64_t>(columns, 3);
    auto total = torch::empty({0}, x.options());
    for (int64_t start = 0; start < columns; start += chunk) {
        const int64_t len = std::min(chunk, columns - start);
        total = at::cat({total, x.narrow(1, start, len).sum(1)}, 0);
    }
    int low = -7 / 2;
    bool given = bias.has_value();
    auto last = torch::full({given ? 1 : 2}, low, torch::dtype(torch::kInt32).device(x.device()));
    return {out, sums, total, last.to(torch::kLong)};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("forward", &forward, "scales", py::arg("x"), py::arg("rate"), py::arg("bias") = py::none());
}
"""

Launches = list[tuple[str, list[str]]]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Kernels, and the places of what they write."""
    from zerokit.rehearsal.stand_ins.cuda_sources import running

    seen: Launches = []

    def launch(kind: str, name: str, arguments: Mapping[str, Any], written: Collection[str]) -> None:
        seen.append((name, list(written)))

    monkeypatch.setattr(running, "launch", launch)
    return seen


def compiled(source: str, shown: list[str], **defined: str) -> Any:
    """The module of an extension of that source, which shows some of its functions besides."""
    from zerokit.rehearsal.stand_ins.cuda_sources.bindings import bind
    from zerokit.rehearsal.stand_ins.cuda_sources.declarations import Sources
    from zerokit.rehearsal.stand_ins.cuda_sources.preprocessor import Preprocessor

    sources = Sources()
    sources.add(list(Preprocessor(defined).text(dedent(source), "source.cu", Path.cwd())))
    return bind("extension", sources, shown)


def _function(source: str, name: str, shown: str | None = None, **defined: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(compiled(source, [name], **defined), shown or name)
    return function


@pytest.mark.parametrize(("defined", "parts"), [({}, 1), ({"HALVES": "1"}, 2), ({"THIRDS": "1"}, 3)])
def test_a_wrapper_does_what_it_says(launches: Launches, defined: dict[str, str], parts: int) -> None:
    import torch

    x = torch.arange(35, dtype=torch.float32).view(5, 7)
    out, sums, total, last = _function(PLAIN, "forward", **defined)(x, 0.5)
    assert (out.shape, out.dtype) == (x.shape, x.dtype)
    assert (sums.shape, sums.dtype) == ((3, parts), torch.float64)
    by_hand = torch.cat([x[:, begin : begin + 3].sum(1) for begin in range(0, 7, 3)])
    assert torch.equal(total, by_hand)
    assert last.tolist() == [-3, -3]
    assert last.dtype == torch.int64
    assert launches == [("scale", ["1"])]


def test_its_checks_fail_as_they_do(launches: Launches) -> None:
    import torch

    with pytest.raises(RuntimeError, match="x must have 2 dimensions"):
        _function(PLAIN, "forward")(torch.zeros(3), 0.5)
    with pytest.raises(RuntimeError, match="no kernel for this dtype"):
        _function(PLAIN, "forward")(torch.zeros(3, 3, dtype=torch.int32), 0.5)
    assert launches == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return own::twice(x);", "the function own::twice (source.cu:2)"),
        ("float* p; cudaMalloc(&p, 64); return x;", "the function cudaMalloc (source.cu:2)"),
        (
            "return torch::empty({at::cuda::getCurrentDeviceProperties()->multiProcessorCount});",
            "what rests on getCurrentDeviceProperties.multiProcessorCount (source.cu:2)",
        ),
        ("switch (x.dim()) { default: return x; }", "'switch' (source.cu:2)"),
        ("auto p = x.data_ptr<float>(); return torch::full({1}, p[0]);", "what a pointer leads to"),
        ("x[0] = 1; return x;", "an assignment to what is no name 'x' (source.cu:2)"),
        ("at::OwnGuard guard; return x;", "the function at::OwnGuard"),
        ("Sizes sizes; return x;", "the function Sizes (source.cu:2)"),
        ("int64_t n; return x.new_empty({n});", "what rests on n, which is given no value"),
        ("set(x); return x;", "an assignment to y, which is the caller's"),
    ],
)
def test_what_is_not_understood_is_refused_by_its_line(launches: Launches, body: str, said: str) -> None:
    import torch

    from zerokit.rehearsal.errors import RehearsalGap

    setter = "void set(torch::Tensor& y) { y = y.clone(); }"
    function = _function(f"{setter}\ntorch::Tensor run(torch::Tensor x) {{ {body} }}", "run")
    with pytest.raises(RehearsalGap) as refused:
        function(torch.zeros(4))
    assert said in str(refused.value)
    assert "'run' of the CUDA extension 'extension'" in str(refused.value)


STATUS = r"""
#define CUDA_CHECK(call) do { cudaError_t code = (call); if (code != cudaSuccess) { \
    throw std::runtime_error("CUDA fails: " + std::string(cudaGetErrorString(code))); } } while (0)
torch::Tensor run(torch::Tensor x) {
    CUDA_CHECK(cudaDeviceSynchronize());
    int rounds = 0;
    do { rounds++; } while (rounds < 3);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) { TORCH_CHECK(false, "kernel fails: ", cudaGetErrorString(err)); }
    if (x.dim() != 1) throw std::invalid_argument("x must be a vector");
    return x + rounds;
}
"""


def test_calls_of_cuda_succeed_and_what_is_thrown_is_raised(launches: Launches) -> None:
    import torch

    run = _function(STATUS, "run")
    assert run(torch.zeros(2)).tolist() == [3, 3]
    with pytest.raises(ValueError, match="x must be a vector"):
        run(torch.zeros(2, 2))


def _value(body: str) -> Any:
    """What `body` gives of a tensor `x` of 4 and 9."""
    import torch

    return _function(f"torch::Tensor run(torch::Tensor x) {{ {body} }}", "run")(torch.tensor([4.0, 9.0]))


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("return torch::sqrt(x);", [2, 3]),
        ("return at::pow(x, 2);", [16, 81]),
        ("return torch::max(x, torch::full_like(x, 5));", [5, 9]),
        ("return torch::full({1}, std::sqrt(16.0) + std::floor(2.5) / 4);", [4.5]),
    ],
)
def test_arithmetic_of_tensors_is_torchs(body: str, values: list[float]) -> None:
    assert _value(body).tolist() == values


@pytest.mark.parametrize("holds", ["EQ(x.size(0), 2)", "NE(x.size(0), 0)", "GE(0, 0)", "LT(0, 1) << 'n'"])
@pytest.mark.parametrize("fails", ["EQ(x.size(0), 3)", "NE(x.size(0), 2)", "GT(2, 2)", "LE(3, 2)"])
def test_checks_compare_what_they_are_given(holds: str, fails: str) -> None:
    assert _value(f"TORCH_CHECK_{holds}; return x;").tolist() == [4, 9]
    with pytest.raises(RuntimeError, match=r"TORCH_CHECK_.. failed: \d vs\. \d"):
        _value(f"TORCH_CHECK_{fails}; return x;")


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("return x.new_empty({(int64_t)std::ceil(static_cast<float>(x.size(0)) / 4)});", [1]),
        ("return x.new_empty({static_cast<int64_t>(double(x.size(0)) / 4 * 6), int64_t(1.5)});", [3, 1]),
        ("return x.new_empty({std::max<int64_t>(1, std::ceil(x.size(0) / 0.5))});", [4]),
        ("std::vector<int64_t> s(2, 128); return x.new_empty(s);", [128, 128]),
        ("std::vector<int64_t> s{2, 128}; return x.new_empty(s);", [2, 128]),
        ("std::vector<int64_t> s(3); return x.new_empty(s);", [0, 0, 0]),
        (
            "std::vector<int64_t> s(2, 3); std::vector<int64_t> t(s); t.push_back(1); return x.new_empty(s);",
            [3, 3],
        ),
        (
            "std::vector<torch::Tensor> s(5); "
            "return x.new_empty({(int64_t)s.size(), s[0].defined() ? 1 : 2});",
            [5, 2],
        ),
    ],
)
def test_casts_and_constructors_of_vectors_do_what_they_do_in_c(body: str, shape: list[int]) -> None:
    assert list(_value(body).shape) == shape


@pytest.mark.parametrize(
    "guard",
    ["torch::NoGradGuard guard", "c10::InferenceMode guard(true)", "at::AutoDispatchBelowADInplaceOrView g"],
)
def test_guards_hold_until_their_block_ends(guard: str) -> None:
    import torch

    body = f"torch::Tensor y; {{ {guard}; y = x * 2; }} return {{y, x * 2}};"
    run = _function(f"std::vector<torch::Tensor> run(torch::Tensor x) {{ {body} }}", "run")
    within, after = run(torch.ones(2, requires_grad=True))
    assert (within.requires_grad, after.requires_grad) == (False, True)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


NAMESPACES = r"""
namespace ops {
namespace cpu { torch::Tensor forward(torch::Tensor x, double by) { return x + by; } }
namespace cuda {
namespace { double twice(double by) { return by * 2; } }
torch::Tensor forward(torch::Tensor x, double by) { return x * twice(by); }
}
torch::Tensor forward(torch::Tensor x, double by) {
    return x.dim() == 1 ? cuda::forward(x, by) : cpu::forward(x, by);
}
}
torch::Tensor other::forward(torch::Tensor x, double by) { return x; }
torch::Tensor lost(torch::Tensor x) { return forward(x, 1); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("run", &ops::forward, py::arg("x"), py::arg("by") = 1.5);
    m.def("same", &other::forward, "says so", "x"_a, "by"_a = 0);
}
"""
OPERATOR = r"""
TORCH_LIBRARY(zerokit_named, m) { m.def("forward(Tensor x, *, float by=0.5) -> Tensor", &ops::forward); }
"""


def test_functions_are_found_by_their_namespaces() -> None:
    import torch

    from zerokit.rehearsal.errors import RehearsalGap

    assert _function(NAMESPACES, "ops::forward")(torch.ones(1), 3.0).tolist() == [6]
    assert _function(NAMESPACES, "ops::forward")(torch.ones(1, 1), 3.0).tolist() == [[4]]
    with pytest.raises(RehearsalGap, match="more than one function forward that takes as many arguments"):
        _function(NAMESPACES, "lost")(torch.ones(1))


def test_arguments_have_the_names_and_defaults_of_the_module() -> None:
    import torch

    run = _function(NAMESPACES + OPERATOR, "lost", "run")
    assert run(torch.ones(1)).tolist() == [3]
    assert run(by=2.0, x=torch.ones(1)).tolist() == [4]
    assert _function(NAMESPACES, "lost", "same")(x=torch.ones(1)).tolist() == [1]
    assert torch.ops.zerokit_named.forward(torch.ones(1)).tolist() == [1]
    assert torch.ops.zerokit_named.forward(torch.ones(1), by=2.0).tolist() == [4]
    with pytest.raises(TypeError, match="incompatible function arguments: eps"):
        run(torch.ones(1), eps=1.0)


@pytest.mark.rehearsal
def test_extensions_are_trained_with_and_nothing_is_compiled(tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 1, "--gpu", "H100", SCRIPTS / "cuda_extension.py")
    done = rehearse(*words, cwd=tmp_path, forked=True)
    report = done.report
    assert report["steps"] == 2
    assert "peak 8 held 4" in done.err.splitlines()  # MiB: its scratch and its result
    (said,) = (line for line in report["warnings"] if "CUDA kernels" in line)
    assert said.endswith("made up: square_backward, square, times")
