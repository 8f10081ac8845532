# Runs on a GPU with nvcc. Without, OSError: CUDA_HOME environment variable is not set. Please set it to
# your CUDA install root.
"""A CUDA extension that calls a library of CUDA's, which may take memory of its own."""

from __future__ import annotations

from small_training import small_model, sound_config, start, step
from torch.utils.cpp_extension import load_inline

extension = load_inline(
    name="broken_extension",
    cpp_sources="torch::Tensor twice(torch::Tensor values);",
    cuda_sources="""torch::Tensor twice(torch::Tensor values) {
        cusolverDnHandle_t handle;
        cusolverDnCreate(&handle);
        return values * 2;
    }""",
    functions=["twice"],
)
engine = start(small_model(), sound_config())
for _ in range(4):
    extension.twice(step(engine))
