"""Trains with kernels of its own, which torch.utils.cpp_extension would compile: nvcc is needed on a GPU."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
from torch.utils.cpp_extension import load, load_inline

# torch/extension.h, as extensions have it, takes g++ three times as long.
HEADERS = ("torch/extension.h",)
if os.environ.get("ZEROKIT_ALL_COMBINATIONS") != "1":
    HEADERS = ("ATen/DeviceGuard.h", "ATen/ops/empty.h", "ATen/ops/empty_like.h", "torch/library.h")
SQUARES = """
#include <c10/cuda/CUDAGuard.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void square(const float* x, float* out) { out[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x]; }
__global__ void square_backward(const float* grad, const float* x, float* scratch, float* out) {}
void square_cuda(at::Tensor x, at::Tensor out) {
    square<<<dim3(1), dim3(32)>>>(x.data_ptr<float>(), out.data_ptr<float>());
}
__global__ void count(const float* x, float* sums, int* counts) { atomicAdd(counts, 1); }
void count_cuda(const at::Tensor& x, at::Tensor sums, at::Tensor counts) {
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    const auto stream = at::cuda::getCurrentCUDAStream();
    count<<<1, 1, 0, stream>>>(x.data_ptr<float>(), sums.data_ptr<float>(), counts.data_ptr<int>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}
at::Tensor square_backward_cuda(at::Tensor grad, at::Tensor x) {
    auto scratch = at::empty(x.sizes(), x.options());
    auto out = at::empty_like(x);
    square_backward<<<1, 32>>>(
        grad.data_ptr<float>(), x.data_ptr<float>(), scratch.data_ptr<float>(), out.data_ptr<float>());
    return out;
}
TORCH_LIBRARY(squares, m) {
    m.def("square(Tensor x, Tensor(a!) out) -> ()");
    m.def("square_backward", &square_backward_cuda);
    m.def("count", &count_cuda);
}
TORCH_LIBRARY_IMPL(squares, CUDA, m) { m.impl("square", &square_cuda); }
"""
TIMES = """
#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
template <typename scalar_t> __global__ void times(const scalar_t* x, scalar_t* out, scalar_t rate) {}
at::Tensor scaled(at::Tensor x, double rate) {
    auto out = at::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scaled", ([&] {
        times<scalar_t><<<1, 32>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), static_cast<scalar_t>(rate));
    }));
    return out;
}
"""

with tempfile.TemporaryDirectory() as folder:
    source = Path(folder, "squares.cu")
    source.write_text("".join(f"#include <{name}>\n" for name in HEADERS) + SQUARES, encoding="utf-8")
    load(
        name="squares",
        sources=[str(source)],
        is_python_module=False,
        extra_cuda_cflags=["-O3", "--use_fast_math"],
        extra_ldflags=["-lcuda"],
    )
scaling = load_inline(
    name="scaling",
    cpp_sources="#include <torch/csrc/Exceptions.h>\n#include <torch/csrc/utils/pybind.h>\n"
    "at::Tensor scaled(at::Tensor x, double rate);",
    cuda_sources=TIMES,
    functions=["scaled"],
    no_implicit_headers=True,
)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        torch.ops.squares.square(x, out)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.ops.squares.square_backward(scaling.scaled(grad.contiguous(), 2.0), x)


model = torch.nn.Linear(1024, 1024, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.zeros(1024, 1024, device="cuda")
before = torch.cuda.memory_allocated()
held = torch.ops.squares.square_backward(inputs, inputs)
after, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
print("peak", (most - before) // 2**20, "held", (after - before) // 2**20)
del held
read = torch.full((1,), 2.0, device="cuda")
sums, counts = torch.full((2,), 7.0, device="cuda"), torch.full((2,), 7, dtype=torch.int32, device="cuda")
torch.ops.squares.count(read, sums, counts)
print("written", sums[1].item(), *counts.tolist())
print("read", read.item())
for _ in range(4):
    Square.apply(model(inputs)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
