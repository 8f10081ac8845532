"""Packages of Apex that only have modules inside."""

from __future__ import annotations

__all__: list[str] = []
