"""CUDA extensions: their host code is compiled, and their kernels are launched and not run."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.commands import SCRIPTS, rehearse
from zerokit.rehearsal.native.build import torch_folder
from zerokit.rehearsal.stand_ins.cuda_extensions import Rewriter, _toolkit, host_code

HEADER = Path("zerokit/rehearsal/stand_ins/cuda_host.h").absolute()
CARD = {"DEVICE": 0, "MAJOR": 9, "MINOR": 0, "MULTIPROCESSORS": 132, "THREADS": 2048}
CARD |= {"MEMORY": 85 << 30, "SHARED": 233472, "SHARED_BLOCK": 232448}


REPORTS = "{ ::zerokit::launched(__func__, a, n); }"


@pytest.mark.parametrize(
    ("cuda", "host"),
    [
        (
            "template <int N> __global__ void __launch_bounds__(N) k(const float* __restrict__ a, int n = 3) "
            "{\n  a[threadIdx.x] >> n;\n}",
            f"template <int N>  void  k(const float* __restrict__ a, int n = 3) {REPORTS}\n\n",
        ),
        ("__global__ void k(float*, int n, at::Half);", " void k(float*, int n, at::Half);"),
        ("__global__ void k(float*, A<1, 2> a, int n[2]) {}", f" void k(float*, A<1, 2> a, int n[2]) {REPORTS}"),
        ("k<float, 2><<<dim3(1, 2), f(3), 0, stream>>>(a, b);", "k<float, 2>(a, b);"),
        ("static __device__ int f(int a) { return __ldg(a); }", "static  int f(int a) { __builtin_trap(); }"),
        ("__device__ A operator()(int a) const { return a; }", " A operator()(int a) const { __builtin_trap(); }"),
        ("__host__ __device__ int f(int a) { return a; }", "  int f(int a) { return a; }"),
        ("__host__ int f(); __constant__ float c[4] = {1, 2};", " int f();  float c[4] = {1, 2};"),
        ("__device__ constexpr int f(int a) { return a; }", " constexpr int f(int a) { return a; }"),
        ('print("k<<<1, 2>>>"); // __global__', 'print("k<<<1, 2>>>"); // __global__'),
        ("#ifdef __CUDACC__\n#endif", "#ifdef ZEROKIT_CUDACC\n#endif"),
        (
            "__global__ void k(float* a, int n) {\n#ifdef __CUDACC__\n  f<<<1, 1>>>(a);\n#endif\n}\nint a;",
            f" void k(float* a, int n) {REPORTS}\n\n\n\n\nint a;",
        ),
        (
            "#define K(k) __global__ void k(float* a, int n) { \\\n  a[0] = 1; \\\n}\nint a;",
            f"#define K(k)  void k(float* a, int n) {REPORTS}\n\n\nint a;",
        ),
    ],
)
def test_kernels_keep_their_parameters_and_report_them(cuda: str, host: str) -> None:
    assert host_code(cuda).rstrip() == host.rstrip()


def test_lines_stay_and_headers_of_the_project_are_rewritten_too(tmp_path: Path) -> None:
    project, copies = tmp_path / "project", tmp_path / "copies"
    copies.mkdir()
    (project / "include").mkdir(parents=True)
    (project / "include" / "k.cuh").write_text("#include <cuda_fp16.h>\n__global__ void k();\n")
    source = project / "k.cu"
    source.write_text("#include <cuda.h>\n#include <k.cuh>\n#include <vector>\n__global__ void k() {\n}\nint x;\n")
    copy = Rewriter(copies, [project / "include"]).copy(source, "#define N 2\n")
    first, line, cuda, own, standard, _, _, last = copy.read_text().splitlines()
    assert (first, line) == ("#define N 2", f'#line 1 "{source}"')
    assert (cuda, standard, last) == ("", "#include <vector>", "int x;")
    header = Path(own.removeprefix('#include "').removesuffix('"'))
    assert header.read_text().splitlines()[1:] == ["", " void k();"]


LAUNCHES = """
#include <cuda_bf16.h>
template <typename T> __global__ void scale(const T* from, T* to, int64_t* places, float rate) {}
extern "C" int run(void* a, void* b, int64_t* c) {
  cudaDeviceProp card;
  if (cudaGetDeviceProperties(&card, 0) != cudaSuccess || card.multiProcessorCount != 132) return 1;
  const auto stream = at::cuda::getCurrentCUDAStream();
  scale<<<dim3(1, 2), 256, 0, stream>>>((const __nv_bfloat16*)a, (__nv_bfloat16*)b, c, 0.5f);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  if (a == nullptr) AT_CUDA_CHECK(cudaGetLastError());
  else scale<float><<<1, 1>>>((float*)a, (float*)b, nullptr, 2);
  return 0;
}
"""


@pytest.mark.rehearsal
def test_launches_tell_what_kernels_read_and_write(tmp_path: Path) -> None:
    (tmp_path / "scale.cu").write_text(LAUNCHES)
    copy, library = Rewriter(tmp_path, []).copy(tmp_path / "scale.cu"), tmp_path / "scale.so"
    torch = torch_folder()
    macros = (f"-DZEROKIT_{name}={value}" for name, value in CARD.items())
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-include", HEADER, *macros]
    command += ["-isystem", torch / "include", copy, "-o", library, "-L", torch / "lib", "-lc10"]
    done = subprocess.run([*map(str, command), f"-Wl,-rpath,{torch / 'lib'}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    launches: list[Any] = []

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_char_p, ctypes.c_int)
    def on_launch(name: bytes, addresses: Any, kinds: bytes, count: int) -> None:
        launches.append((name, addresses[:count], kinds[:count]))

    opened = ctypes.CDLL(str(library))
    ctypes.c_void_p.in_dll(opened, "zerokit_on_launch").value = ctypes.cast(on_launch, ctypes.c_void_p).value
    assert opened.run(ctypes.c_void_p(8), ctypes.c_void_p(16), ctypes.c_void_p(24)) == 0
    assert launches == [(b"scale", [8, 16, 24], b"rbi"), (b"scale", [8, 16, None], b"rfi")]


@pytest.mark.rehearsal
def test_an_extension_allocates_as_on_a_gpu(tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 1, "--gpu", "H100", SCRIPTS / "cuda_extension.py")
    done = rehearse(*words, cwd=tmp_path, forked=True)
    report = done.report
    assert report["steps"] == 2
    assert {"peak 8 held 4", "written 1.0 0 0", "read 2.0"} <= set(
        done.err.splitlines()
    )  # MiB: its scratch and its result
    (said,) = (line for line in report["warnings"] if "CUDA kernels" in line)
    assert said.endswith("integers too (count), which no size should rest on: square_backward, count, square, times")


@pytest.mark.rehearsal
def test_an_extension_that_needs_more_of_cuda_is_refused(tmp_path: Path) -> None:
    done = rehearse("--num-gpus", 1, SCRIPTS / "broken_compiler.py", cwd=tmp_path)
    assert done.code == 2
    *_, last = done.err.splitlines()
    assert "cannot stand in for the CUDA extension 'broken_extension'" in last
    assert re.search(r"twice\.cu:3: .cusolverDnHandle_t. was not declared", last)
    assert "torch.library.register_fake" in last


def test_nvcc_prints_its_release_and_compiles_nothing(tmp_path: Path) -> None:
    nvcc = _toolkit(tmp_path / "cuda", "12.8") / "bin" / "nvcc"
    told = subprocess.run([nvcc, "-V"], capture_output=True, text=True)
    words = told.stdout.split()
    assert words[words.index("release") + 1] == "12.8,"
    refused = subprocess.run([nvcc, "-c", "kernel.cu"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "compiles nothing for the GPU" in refused.stderr
