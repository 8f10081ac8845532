"""Views that change the number format, and a host kernel that asks for memory of its own (oneDNN)."""

from __future__ import annotations

import torch


def views_share_memory(pairs: int) -> None:
    before = torch.cuda.memory_allocated()
    flat = torch.zeros(pairs, 2, device="cuda")
    held = torch.cuda.memory_allocated() - before
    numbers = torch.view_as_complex(flat)
    assert (numbers.dtype, numbers.shape) == (torch.complex64, (pairs,))
    again = torch.view_as_real(numbers)
    assert (again.dtype, again.shape, again.data_ptr()) == (torch.float32, (pairs, 2), flat.data_ptr())
    assert torch.cuda.memory_allocated() - before == held


def host_products_are_real() -> None:
    generator = torch.Generator().manual_seed(5)
    left = torch.randn(512, 512, generator=generator).bfloat16()
    error = (left @ left).float() - left.float() @ left.float()
    assert 0 < error.abs().max() < 1


# Small enough to hold values, and not.
views_share_memory(8)
views_share_memory(100_000)
host_products_are_real()
print("all as on the cluster")
