"""Questions of tests to a rehearsal, each answered by a process of its own: a rehearsal changes it for good.

A question is a function of a test's module, or of one beside it: it takes the virtual rank, imports torch
within itself, and returns what JSON can hold.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tests import processes
from tests.rehearsal import forked_worker
from tests.tiny import REPOSITORY


@functools.cache
def answer(
    question: Callable[[Any], Any],
    capability: str = "9.0",
    *,
    num_gpus: int = 8,
    environment: tuple[tuple[str, str], ...] = (),
    forked: bool = True,
) -> Any:
    """The answer of a rehearsal on GPUs of this compute capability, with changes to its environment.

    What is compiled is asked of a process that is not `forked`: see :mod:`tests.rehearsal.forked_worker`.
    """
    words = ["-m", __name__, question.__module__, question.__name__, capability, str(num_gpus)]
    variables = dict(environment)
    if forked:
        words = ["-m", forked_worker.__name__, *words]
        variables[forked_worker.SOCKET] = forked_worker.server()
    printed = processes.checked([sys.executable, *words], cwd=REPOSITORY, env=os.environ | variables)
    return json.loads(printed.splitlines()[-1])


def requested() -> int:
    """Bytes requested from the device and not given back."""
    import torch

    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


def peak(run: Callable[[], Any], *, beyond_results: bool = True) -> int:
    """Bytes at the peak of `run`, beyond what it returns, or beyond what there was before."""
    import torch

    before = requested()
    torch.cuda.reset_peak_memory_stats()
    results = run()
    at_peak = int(torch.cuda.memory_stats()["requested_bytes.all.peak"])
    after = requested()
    del results
    return at_peak - (after if beyond_results else before)


def compared_with_meta(calls: Iterable[tuple[str, Callable[[Any], Any]]], layout: Callable[[Any], Any]) -> Any:
    """Results on the GPU whose layout is not that of torch's Meta kernels, and the number of tensors.

    Args:
        calls: by name, functions of a device.
        layout: of a result, as it has to be the same.
    """
    import torch

    differences, tensors = [], 0
    for name, call in calls:
        with torch.no_grad():
            found = [call(torch.device(device)) for device in ("cuda", "meta")]
        on_device, on_meta = (one if isinstance(one, tuple | list) else [one] for one in found)
        for left, right in zip(on_device, on_meta, strict=True):
            tensors += isinstance(left, torch.Tensor)
            if layout(left) != layout(right):
                differences.append(f"{name}: {layout(left)} and {layout(right)}")
    return {"differences": differences, "tensors": tensors}


def main(module: str, question: str, capability: str, num_gpus: str) -> None:
    """Answer one question."""
    from zerokit.hardware.gpus import find_gpu
    from zerokit.rehearsal import virtual_cluster
    from zerokit.rehearsal.devices import virtual_device

    major, _, minor = capability.partition(".")
    # As many multiprocessors as an H100 and an A100 have.
    device = replace(
        virtual_device(find_gpu("H100")),
        capability=(int(major), int(minor)),
        multiprocessors=132 if int(major) >= 9 else 108,
    )
    with virtual_cluster(int(num_gpus), device=device) as rank:
        found = json.dumps(getattr(importlib.import_module(module), question)(rank))
    print(found, flush=True)
    if forked_worker.SOCKET not in os.environ:
        os._exit(0)  # whatever threads a compiler has left


if __name__ == "__main__":
    main(*sys.argv[1:])
