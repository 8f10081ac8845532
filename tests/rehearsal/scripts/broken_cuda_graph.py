"""Captures a CUDA graph."""

from __future__ import annotations

import torch

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.zeros(8, device="cuda")
