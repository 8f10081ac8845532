"""The package grouped_gemm itself, which only has modules inside."""

from __future__ import annotations

__all__: list[str] = []
