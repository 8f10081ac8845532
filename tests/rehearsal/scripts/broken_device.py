# RuntimeError: CUDA error: invalid device ordinal
"""RANK, which counts over all nodes, taken for the number of the GPU."""

from __future__ import annotations

import os

import torch
from small_training import join_ranks

join_ranks()
torch.ones(4).to(f"cuda:{os.environ['RANK']}")
