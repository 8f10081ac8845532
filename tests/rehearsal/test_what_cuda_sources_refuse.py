"""Where reading C++ stops: what is not followed is refused by its line, what fails on a GPU fails here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.test_cuda_sources import compiled

BEFORE = (  # in one line
    "template <typename T> T scale(T n) { return n; } template <> float scale<float>(float n) { return 2; } "
    "namespace a { const int N = 1; } namespace b { const int N = 2; }"
)


def _run(body: str, x: Any = None, before: str = "", result: str = "torch::Tensor") -> Any:
    """What `body` gives of a tensor `x` of 4 and 9, and of an optional tensor `bias` that is not given."""
    import torch

    taken = "torch::Tensor x, std::optional<torch::Tensor> bias = std::nullopt"
    module = compiled(f"{before}\n{result} run({taken}) {{\n{body}\n}}", ["run"])
    return module.run(torch.tensor([4.0, 9.0]) if x is None else x)


@pytest.mark.parametrize(
    ("body", "values"),
    [
        ("auto y = x; y += 1; return x;", [5, 10]),
        ("auto y = x; y = y + 1; return x;", [4, 9]),
        ("x[0] *= 2; return x;", [8, 9]),
        ("if (bias) return x; return x + 1;", [5, 10]),
        ("std::optional<torch::Tensor> y = x; if (y && y->defined()) return *y + 2; return x;", [6, 11]),
        ("return x.data_ptr<float>() == nullptr ? x : x + 3;", [7, 12]),
        ("return torch::empty({0}).data_ptr<float>() == nullptr ? x : x + 3;", [4, 9]),
        ("float* p = bias ? bias->data_ptr<float>() : nullptr; return p == nullptr ? x : x + 3;", [4, 9]),
        ("static const int n = 2; return x + n;", [6, 11]),
        ("int n = 0; for (auto& part : x.split(1)) n += part.numel(); return x + n;", [6, 11]),
        ("TORCH_CHECK(x.defined(), cudaGetErrorString(cudaGetLastError())); return x;", [4, 9]),
        ("auto [most, at] = x.max(0); return torch::stack({most, at.to(torch::kFloat)});", [9, 1]),
        ("std::vector<int64_t> s = x.sizes().vec(); s[0] = 1; return x.new_empty(s).fill_(1);", [1]),
        ("int64_t n = x.item<int64_t>(); return x + n;", None),
        ("return x.to(torch::kInt).max().item<float>() / 2 + x;", [8.5, 13.5]),
    ],
)
def test_tensors_and_optionals_are_those_of_c(body: str, values: list[float] | None) -> None:
    if values is None:
        with pytest.raises(RuntimeError, match="Tensor with 2 elements cannot be converted to Scalar"):
            _run(body)
    else:
        assert _run(body).tolist() == values


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("++x.size(0); return x;", "'++' of what is no name (source.cu:3)"),
        ("++x[0]; return x;", "++ or -- of a Tensor (source.cu:3)"),
        ("torch::Tensor y;\nreturn y + 1;", "+ of what is not there and a number (source.cu:4)"),
        ("int n = 08; return x;", "the number 08 (source.cu:3)"),
        ("int n = 2147483647;\nn += x.dim();\nn *= 1 << 20; return x;", "an overflow of"),
        ("int n = 2147483647;\nreturn x + (n + 1);", "an overflow of int (source.cu:4)"),
        ("std::vector<int> v(2);\nreturn x + v[2];", "the element 2 of 2 (source.cu:4)"),
        ("static int n = 0; n += 1; return x + n;", "'static' (source.cu:3)"),
        ("static const int n = x.numel(); return x + n;", None),
        ("int n = 7;\ncudaGetDevice(&n);\nreturn x + n;", "what rests on what cudaGetDevice writes"),
        ("assert(x.dim() == 2); return x;", "an assert that fails, which ends the program (source.cu:3)"),
        ('AT_DISPATCH_OWN(x.scalar_type(), "run", [&] {}); return x;', "the macro AT_DISPATCH_OWN"),
        ("return x + scale<float>(1);", "more than one function scale"),
        ("return x + 'a';", "what rests on the character 'a'"),
        ("return x + N;", "more than one constant N (source.cu:3)"),
        ("return x + (x.dim() ? 1 : x.item<double>()) / 2;", "what rests on the type of ?:"),
        ('AT_DISPATCH_ALL_TYPES(x.scalar_type(), "run", [&] { x += scalar_t(1.5); }); return x;', None),
        ("\n#frobnicate\nreturn x;", "the directive #frobnicate (source.cu:4)"),
        (
            "\n#if __has_include(<own.h>)\n#endif\nreturn x;",
            "a condition on whether there is own.h (source.cu:4)",
        ),
        ("\n#if OWN(3)\n#endif\nreturn x;", "the condition 'OWN ( 3 )', 'OWN'"),
        ("\n#if __FROBNICATED__\n#endif\nreturn x;", "a condition on __FROBNICATED__ (source.cu:4)"),
        ("\n#define ONE(a) a\nreturn x + ONE(1, 2);", "the macro ONE with 2 arguments (source.cu:5)"),
    ],
)
def test_what_is_not_followed_is_refused_by_its_line(body: str, said: str | None) -> None:
    from zerokit.rehearsal.errors import RehearsalGap
    from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

    if said is None:
        _run(body, before=BEFORE)
        return
    with pytest.raises((RehearsalGap, UnreadError)) as refused:
        _run(body, before=BEFORE)
    assert said in str(refused.value)


def _module(shown: str) -> Any:
    taken = "std::tuple<int, torch::Tensor> run(torch::Tensor x, int n) { return {n, x}; }"
    return compiled(f"{taken}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ {shown} }}", [])


def test_python_is_given_what_pybind11_gives() -> None:
    import torch

    module = _module('m.doc() = "runs"; m.def("run", &run, "says so").def("same", run);')
    for function in (module.run, module.same):
        given = function(torch.ones(1), 3)
        assert type(given) is tuple
        assert (type(given[0]), given[0]) == (int, 3)
    for wrong in (2.5, 2**40):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            module.run(torch.ones(1), wrong)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ('py::class_<Own>(m, "Own").def("run", &run);', "'py' (source.cu:2)"),
        ('m.attr("n") = 3; m.def("run", &run);', "'attr' (source.cu:2)"),
        (
            'm.def("run", &run); m.def("run", &run);',
            "more than one function run that Python is shown (source.cu:2)",
        ),
        ("m.def(NAME, &run);", "under a name that is no string (source.cu:2)"),
    ],
)
def test_a_module_of_more_than_functions_is_refused(shown: str, said: str) -> None:
    from zerokit.rehearsal.stand_ins.cuda_sources.tokens import UnreadError

    with pytest.raises(UnreadError) as refused:
        _module(shown)
    assert said in str(refused.value)


def test_dispatch_takes_the_types_of_its_name() -> None:
    import torch

    body = 'AT_DISPATCH_{}(x.scalar_type(), "run", [&] {{ x += sizeof(scalar_t); }}); return x;'
    half, more = torch.zeros(1, dtype=torch.half), "FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, "
    assert _run(body.format("FLOATING_TYPES_AND_HALF"), half).tolist() == [2]
    assert _run(body.format("ALL_TYPES"), torch.zeros(1, dtype=torch.int16)).tolist() == [2]
    assert _run(body.format("FLOATING_TYPES").replace("FLOATING_TYPES(", more), half).tolist() == [4]
    for name, dtype, called in (
        ("FLOATING_TYPES", torch.half, "Half"),
        ("FLOATING_TYPES_AND_HALF", torch.bfloat16, "BFloat16"),
        ("INTEGRAL_TYPES", torch.float32, "Float"),
    ):
        with pytest.raises(NotImplementedError, match=f"\"run\" not implemented for '{called}'"):
            _run(body.format(name), torch.zeros(1, dtype=dtype))


def test_each_source_has_macros_of_its_own(tmp_path: Path) -> None:
    from zerokit.rehearsal.errors import RehearsalGap
    from zerokit.rehearsal.stand_ins.cuda_extensions import _read

    (tmp_path / "sizes.h").write_text(
        "#ifdef WIDE\n#define N 8\n#else\n#define N 4\n#endif\n", encoding="utf-8"
    )
    host = """#define WIDE
#include"sizes.h"
#ifdef __CUDACC__
#error "not for nvcc"
#endif
static const int count = N;
int first() { return count + FLAG; }
"""
    device = """#include "sizes.h"
#if !defined(__CUDACC__) || defined(FLAG) || !defined(OWN)
#error "for nvcc alone"
#endif
static const int count = N;
int second() { return count; }
"""
    files = {"a.cpp": host, "b.cu": device}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    units = [(name.endswith(".cu"), [tmp_path / name]) for name in files]
    options = {"extra_cflags": ["-D FLAG=100", "-O3"], "extra_cuda_cflags": ["-DOWN"]}
    module = _read("own", units, options, ["first", "second"])
    assert (module.first(), module.second()) == (108, 4)
    with pytest.raises(
        RuntimeError, match=r"Error building extension 'own': a\.cpp:4: error: #error"
    ) as failed:
        _read("own", [(True, [tmp_path / "a.cpp"])], options, ["first"])
    assert not isinstance(failed.value, RehearsalGap)
    with pytest.raises(FileNotFoundError):
        _read("own", [(True, [tmp_path / "missing.cu"])], {}, [])
