"""Writes how many times too large DeepSpeed's gradients are for a mean loss over two ranks that share a row.

The loss is transformers' own (`deepspeed_sp_compute_loss`): gathered by an operation that has a gradient.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import deepspeed
import deepspeed.comm as dist
import deepspeed.runtime.sequence_parallel.parallel_state_sp as mpu
import torch
from torch.distributed.nn.functional import all_gather

STAGES = {
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "3-all-reduced": {"stage": 3, "reduce_scatter": False},
}
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}

if __name__ == "__main__":
    deepspeed.init_distributed("gloo")
    mpu.initialize_sequence_parallel(2)
    found = {}
    for name, zero in STAGES.items():
        model = torch.nn.Linear(4, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        config = {**CONFIG, "zero_optimization": zero}
        engine, *_ = deepspeed.initialize(model=model, mpu=mpu, optimizer=optimizer, config=config)
        loss = engine(torch.ones(1, 4)).mean()  # its gradient is 1 for each weight
        engine.backward(torch.stack(all_gather(loss, group=mpu.get_sequence_parallel_group())).mean())
        engine.step()
        with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=zero["stage"] == 3):
            found[name] = -float(model.weight[0, 0])
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
