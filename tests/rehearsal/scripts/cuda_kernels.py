"""CUDA kernels that NVRTC compiles: one whose parameters show, one that a macro makes."""

from __future__ import annotations

import torch

COUNT = 1 << 20
HALVE = """
extern "C" __global__ void __launch_bounds__(256) halve(
    const float* __restrict__ from,  // read, and *not written
    const int* places, float *to, int* counted, int count) {
    int place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place < count) to[places[place]] = 0.5f * from[place];
}
"""
MADE = """
#define KERNEL(name) extern "C" __global__ void name(const float* from, float* to)
KERNEL(made) { to[threadIdx.x] = from[threadIdx.x]; }
"""


def tried(kernel, *arguments, **given) -> None:
    try:
        kernel((1, 1, 1), (256, 1, 1), arguments, **given)
    except (ValueError, TypeError, RuntimeError) as error:
        print(type(error).__name__, error)


def main() -> None:
    model = torch.nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    halve = torch.cuda._compile_kernel(HALVE, "halve", compute_capability="90")
    read = torch.tensor([2.0, 3.0], device="cuda")
    places = torch.tensor([1, 0], dtype=torch.int32, device="cuda")
    counted = torch.full((1,), 7, dtype=torch.int32, device="cuda")
    for _ in range(2):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        halved = torch.empty(COUNT, device="cuda")
        halve(grid=(COUNT // 256, 1, 1), block=(256, 1, 1), args=[read, places, halved, counted, COUNT])
        print("peak", torch.cuda.max_memory_allocated() - before)
        model(torch.zeros(8, device="cuda")).sum().backward()
        optimizer.step()
    print("read", read.tolist(), places.tolist(), "written", halved[0].item(), counted.item())
    made = torch.cuda._compile_kernel(MADE, "made")
    made(args=[read, halved])
    print("unknown", read.tolist())
    tried(halve, torch.zeros(8), places, halved, counted, COUNT)
    tried(halve, "text")
    tried(halve, shared_mem=100 * 1024)
    halve.set_shared_memory_config(100 * 1024)
    tried(halve, shared_mem=100 * 1024)
    try:
        halve.set_shared_memory_config(2**20)
    except RuntimeError as error:
        print(error)


if __name__ == "__main__":
    main()
