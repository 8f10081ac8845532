"""Trains tiny models, so that the host's Python decides, and prints a line with the seconds of each one's steps.

``host_bound_steps.py PLANS.json`` reads a list of objects with the keys of
`tests.validation.rehearsal.host_bound.Plan`. With another argument it is one rank of four on a processor, whose
collectives do nothing, counts its own CPU time, and measures the machine beside each plan.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if len(sys.argv) > 2 else {}
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4"} if len(sys.argv) > 2 else {}

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoConfig, AutoModelForCausalLM

IS_REAL = len(sys.argv) > 2
Step = Callable[[], None]
WIDTH, LENGTH, TOKENS = 16, 6, 32
WARM, STEPS, SECONDS, PROFILED = 3, 4, 2.0, 4
"""Steps before those that count; at least so many steps, and seconds of all; steps that are profiled after them."""


class Tanh(nn.Module):
    """A weight and its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(WIDTH, WIDTH), nn.Tanh()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.activation(self.linear(inputs))
        return result


class Gated(nn.Module):
    """As in Llama, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.activation = nn.SiLU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        normed = self.norm(inputs)
        result: torch.Tensor = inputs + self.down(self.activation(self.gate(normed)) * self.up(normed))
        return result


class Layers(nn.Module):
    """Of one kind."""

    def __init__(self, kind: type[nn.Module], number: int, checkpointing: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(number))
        self.checkpointing = checkpointing

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = checkpoint(layer, inputs, use_reentrant=False) if self.checkpointing else layer(inputs)
        return inputs


def made(plan: dict[str, Any], device: torch.device | str) -> tuple[nn.Module, Callable[[Any], torch.Tensor]]:
    """A plan's model, and the loss of what is called as it."""
    kinds: dict[str, type[nn.Module]] = {"tanh": Tanh, "gated": Gated}
    if plan["model"] in kinds:
        inputs = torch.ones(1, WIDTH, dtype=torch.bfloat16, device=device, requires_grad=True)
        model: nn.Module = Layers(kinds[plan["model"]], plan["layers"], plan["checkpointing"])
        return model, lambda called: called(inputs).sum()
    sizes = {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": plan["layers"]}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": TOKENS, "use_cache": False}
    config = AutoConfig.for_model(plan["model"], **sizes, **heads)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    model.train()
    if plan["checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    ids = torch.ones(1, LENGTH, dtype=torch.int64, device=device)
    return model, lambda called: called(input_ids=ids, labels=ids).loss


def engine_step(plan: dict[str, Any]) -> tuple[Step, Any]:
    """By DeepSpeed's engine."""
    bucket = plan["bucket"]
    zero = {
        "stage": plan["stage"],
        "overlap_comm": True,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if plan["stage"] == 3:
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": bucket}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": plan["accumulation"],
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "steps_per_print": 10**9,
        "zero_optimization": zero,
    }
    model, loss = made(plan, "cpu" if IS_REAL else "cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

    def step() -> None:
        for _ in range(plan["accumulation"]):
            engine.backward(loss(engine))
            engine.step()

    return step, engine


def machine() -> dict[str, float]:
    """Seconds of what `zerokit calibrate` measures of the host, now."""
    from zerokit.calibration.host import autograd_seconds, python_seconds

    nodes = autograd_seconds()
    return {"python_call": python_seconds(), "node_made": nodes.node_made, "node_run": nodes.node_run}


def play_a_rank() -> None:
    """Be one of four on a processor."""
    from deepspeed.accelerator import get_accelerator
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    get_accelerator().device_count = lambda: 4  # a processor's starts a program


def profiled_share() -> Callable[[Step], float]:
    """What measures which share of a step is torch's operators, with their arguments and results."""
    from tools.host_costs.__main__ import measured_overhead, parts_of
    from tools.host_costs.profiler import Profiler

    profiler = Profiler()
    overhead = measured_overhead(profiler)

    def share(step: Step) -> float:
        _, operators, whole = parts_of(profiler.samples(step), overhead)
        return operators / whole

    return share


def main() -> None:
    plans = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    if IS_REAL:
        play_a_rank()
    deepspeed.init_distributed()
    logging.disable(logging.WARNING)
    operators_share = profiled_share() if IS_REAL else None
    clock = time.thread_time if IS_REAL else time.perf_counter
    for place, plan in enumerate(plans):
        step, engine = engine_step(plan)
        seconds = []
        found = [machine()] if IS_REAL else []
        for _ in range(WARM):
            step()
        while not seconds or (IS_REAL and (len(seconds) < STEPS or sum(seconds) < SECONDS)):
            begin = clock()
            step()
            if not IS_REAL:
                torch.cuda.synchronize()
            seconds.append(clock() - begin)
        shares = [operators_share(step) for _ in range(PROFILED)] if IS_REAL else []
        found += [machine()] if IS_REAL else []
        row = {"place": place, "seconds": seconds, "machine": found, "operators": shares}
        print("plan", json.dumps(row), flush=True)
        engine.destroy()


if __name__ == "__main__":
    main()
