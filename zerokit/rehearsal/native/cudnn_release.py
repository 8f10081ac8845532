"""The release of cuDNN that a torch brings, by which its attention chooses kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import requires, version

_BROUGHT = {5: 90100, 7: 90501, 8: 91002, 11: 91900, 12: 92000, 14: 92400}
"""By the first minor release of torch 2 whose wheels on PyPI require it, as CUDNN_VERSION writes it."""
_REQUIRED = re.compile(r"nvidia-cudnn-cu\d+\s*\(?==(\d+)\.(\d+)\.(\d+)")


def cudnn_release(torch: str | None = None, required: Iterable[str] | None = None) -> int:
    """Of the CUDA build of a torch, as CUDNN_VERSION writes it: 9.10.2 is 91002.

    A CUDA build names the release among its requirements. Of others, such as a CPU build in the place of the
    cluster's, it is that of PyPI's wheels of the same release.

    Args:
        torch: its version; that of the installed one by default.
        required: what it requires; that of the installed one by default.
    """
    torch = version("torch") if torch is None else torch
    for line in (requires("torch") or ()) if required is None else required:
        if found := _REQUIRED.match(line):
            major, minor, patch = (int(part) for part in found.groups())
            return major * 10_000 + minor * 100 + patch
    minor_release = int(torch.split(".")[1])
    return _BROUGHT[max(first for first in _BROUGHT if first <= max(minor_release, min(_BROUGHT)))]
