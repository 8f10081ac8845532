"""Takes one step of SGD with each config and says how far it went, for a CPU that need not know fp16.

Run as a script with two files: a JSON object {name: config} to read, and one to write,
{name: {"update": norm of the change of all weights, "reported": the norm that DeepSpeed reports}} or
{name: {"error": ...}}. The script says that the CPU has fp16, so that DeepSpeed's own code runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lint.one_rank import open_world


def one_step(config: dict[str, Any]) -> dict[str, Any]:
    """What a step of SGD with a learning rate of 1 does to a model whose gradients are small."""
    import deepspeed
    import torch
    from deepspeed.runtime import torch_autocast

    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False  # DeepSpeed keeps it for the whole process
    torch_autocast.TORCH_AUTOCAST_DTYPE = None
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "zero_allow_untested_optimizer": True,
        **config,
    }
    try:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
        before = [parameter.detach().float().clone() for parameter in engine.module.parameters()]
        inputs = torch.randn(2, 8, dtype=next(engine.module.parameters()).dtype)
        engine.backward((0.1 * engine(inputs).float()).pow(2).mean())
        engine.step()
        pairs = zip(engine.module.parameters(), before, strict=True)
        change = torch.cat([(after.detach().float() - earlier).flatten() for after, earlier in pairs])
        reported = engine.get_global_grad_norm()
        return {
            "update": change.norm().item(),
            "reported": None if reported is None else float(reported),
            "optimizer": type(engine.optimizer).__name__,
        }
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read the configs from the first file and write the outcomes to the second."""
    configs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    open_world()
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda self: True
    outcomes = {name: one_step(config) for name, config in configs.items()}
    Path(sys.argv[2]).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
