# Runs on a GPU with nvcc. Without, OSError: CUDA_HOME environment variable is not set. Please set it to
# your CUDA install root.
"""A CUDA extension that calls a library of CUDA's, which may take memory of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from torch.utils.cpp_extension import load

SOURCE = """#include <cusolverDn.h>
extern "C" int twice(int values) {
    cusolverDnHandle_t handle;
    cusolverDnCreate(&handle);
    return values * 2;
}
"""
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "twice.cu").write_text(SOURCE, encoding="utf-8")
    load(name="broken_extension", sources=[str(Path(folder, "twice.cu"))], is_python_module=False)
