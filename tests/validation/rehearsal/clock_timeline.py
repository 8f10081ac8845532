"""A step of ZeRO-3 over four layers of one weight each, with costs of whole milliseconds.

A layer's product takes 10 ms, gathering its weight 4 ms, reducing its gradient 4 ms; all else is free.
After each layer's forward the host waits for the device, so that nothing but prefetching lets a gather run
ahead. `python -m tests.validation.rehearsal.clock_timeline` prints what each step did, as JSON: by
overlap_comm and prefetching; besides, of single calls, which costs were asked for (call_costs.py).
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any
from unittest import mock

from tests.tiny import REPOSITORY
from tests.validation.rehearsal import call_costs
from tests.validation.rehearsal.fixed_costs import FixedCosts

SIZE, LAYERS, GPUS = 1024, 4, 8
MS = 1e-3
COLDNESS = [1.0, 1.0, 1.0, 1.0, 2.0]
"""A call after eight other functions takes twice as long."""


def steps(rank: Any, *, overlap_comm: bool, prefetch: int) -> dict[str, Any]:
    """The third step: how long it and its forward pass took in milliseconds, and what was done when."""
    import deepspeed
    import torch

    from zerokit.rehearsal.recording import SPAN
    from zerokit.rehearsal.report.step_time import breakdown

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(LAYERS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                torch.cuda.current_stream().synchronize()
            return x.sum()

    weight = SIZE * SIZE
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": overlap_comm,
            "stage3_prefetch_bucket_size": prefetch * weight,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": LAYERS * weight,
            "stage3_max_reuse_distance": 0,
            "reduce_bucket_size": weight,
        },
    }
    model = Model()
    engine, *_ = deepspeed.initialize(model=model, config=config, model_parameters=model.parameters())
    for _ in range(3):
        torch.cuda.synchronize()
        start = rank.time.clock.now
        before = len(rank.backend.spans(SPAN))
        loss = engine(torch.empty(1, SIZE, SIZE, dtype=torch.bfloat16, device="cuda"))
        forward = rank.time.clock.now - start
        engine.backward(loss)
        engine.step()
        torch.cuda.synchronize()
    end = rank.time.clock.now
    spans = rank.backend.spans(SPAN)[before:]
    names = rank.backend.operator_names()
    return {
        "forward": forward / 1e6,
        "all": (end - start) / 1e6,
        "breakdown": breakdown(spans, start, end).model_dump(),
        "work": [(names[name], begin - start, end - start) for begin, end, name, *_ in spans.tolist()],
    }


def main() -> None:
    """Answer for all four."""
    from zerokit.hardware.costs import python_calls
    from zerokit.rehearsal import virtual_cluster

    # So little of each node of autograd is not seen in the steps.
    costs = FixedCosts(product=10 * MS, by_byte=4 * MS / (2 * SIZE * SIZE), node=1e-9)
    cold = mock.patch.multiple(python_calls, coldness=lambda: COLDNESS, sizes=lambda: [1.0])
    with cold, virtual_cluster(GPUS, costs=costs) as rank:
        found = {
            f"{overlap_comm} {prefetch}": steps(rank, overlap_comm=overlap_comm, prefetch=prefetch)
            for overlap_comm in (False, True)
            for prefetch in (0, LAYERS)
        }
        found["again"] = steps(rank, overlap_comm=True, prefetch=LAYERS)
        found["offloaded"] = call_costs.offloaded_step(costs)
        found["asked"] = call_costs.asked(rank.time, costs)
        found["host work"] = call_costs.host_work(rank, costs)
        found["drives"] = call_costs.drives(rank.time, costs)
        found["compiled"] = call_costs.compiled(costs)
        found["templates"] = [name for name in rank.time.without_cost if "flex_attention" in name]
        found["polling"] = call_costs.polling(rank.time.clock)
        found["recomputed"] = call_costs.recomputed(rank.backend)
        script = REPOSITORY / "tests" / "rehearsal" / "scripts" / "clocks.py"
        found["clocks"] = runpy.run_path(str(script), run_name="__main__")["SEEN"]
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
