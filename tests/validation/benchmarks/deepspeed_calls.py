"""How much longer a call of DeepSpeed's Python takes than one of torch's.

``python -m tests.validation.benchmarks.deepspeed_calls``, on a machine that does nothing else.

One rank trains modules so small that the host's Python is nearly all of a step, bare and by DeepSpeed's
engine. What the engine adds, without the operators, the collectives and the calls of other packages that it
makes (each counted, at what they take here), is divided by the calls of DeepSpeed's own functions.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}

import deepspeed
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from zerokit.calibration.host import autograd_seconds, python_seconds

Step = Callable[[], None]
STAGES = (1, 2, 3)
MODULES, WIDTH = 400, 8
REPEATED = 9


class Taken(NamedTuple):
    """Of one step."""

    seconds: float
    """Of the process, which has one thread at a time at work."""
    calls: Counter[bool]
    """Of Python functions; True: DeepSpeed's."""
    operators: int
    collectives: int


def modules() -> nn.Sequential:
    """Weights and activations, one after the other."""
    torch.manual_seed(0)
    return nn.Sequential(*(one for _ in range(MODULES) for one in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def bare() -> Step:
    model, inputs = modules(), torch.ones(2, WIDTH)
    return lambda: model(inputs).sum().backward()


def by_engine(stage: int) -> Step:
    """A micro-batch of many, so that the optimizer has no part in it."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0, "overlap_comm": False}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 10**6,
        "optimizer": {"type": "SGD", "params": {"lr": 0.0}},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    model, inputs = modules(), torch.ones(2, WIDTH)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step() -> None:
        engine.backward(engine(inputs).sum())
        engine.step()

    return step


class Counted(TorchDispatchMode):
    """Operators, and collectives among them."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = self.collectives = 0

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "c10d":
            self.collectives += 1
        else:
            self.operators += 1
        return operator(*args, **(kwargs or {}))


def taken(step: Step) -> Taken:
    for _ in range(3):
        step()
    seconds = []
    for _ in range(REPEATED):
        begin = time.process_time()
        step()
        seconds.append(time.process_time() - begin)
    with Counted() as counted:
        step()
    calls = Counter[bool]()

    def count(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            calls[f"{os.sep}deepspeed{os.sep}" in frame.f_code.co_filename] += 1

    threading.setprofile(count)  # autograd's
    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]  # as its documentation has it
    return Taken(min(seconds), calls, counted.operators, counted.collectives)


def collective_seconds() -> float:
    """Of one, among one rank."""
    from zerokit.calibration.seconds import seconds_of

    part, whole = torch.ones(WIDTH), torch.ones(WIDTH)
    return seconds_of(lambda: torch.distributed.all_gather_into_tensor(whole, part), time.process_time)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        deepspeed.init_distributed("gloo", False, init_method=meeting, rank=0, world_size=1)
        others, view, collective = python_seconds(), autograd_seconds().view, collective_seconds()
        alone = taken(bare())
        ratios = []
        for stage in STAGES:
            step = taken(by_engine(stage))
            added = step.seconds - alone.seconds
            added -= (step.operators - alone.operators) * view + step.collectives * collective
            added -= (step.calls[False] - alone.calls[False]) * others
            ratios.append(added / step.calls[True] / others)
            print(
                f"stage {stage}: {1e3 * step.seconds:.0f} ms, {1e3 * alone.seconds:.0f} bare; "
                f"{step.calls[True]:,} calls of DeepSpeed's, {step.calls[False]:,} others, "
                f"{step.operators:,} operators, {step.collectives:,} collectives: "
                f"{ratios[-1]:.1f} times {1e6 * others:.2f} µs"
            )
        print(f"median {statistics.median(ratios):.1f}")
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
