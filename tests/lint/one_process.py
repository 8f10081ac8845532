"""Gives configs to DeepSpeed itself, on a model of two layers and one CPU, and says what it did.

Run as a script with two files: a JSON object {name: {"config": ..., "resume": bool}} to read, and one to
write, {name: outcome}. An outcome is "ok", "nan", or where it stopped and the error.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.lint.one_rank import open_world


def outcome(config: dict[str, Any], *, resume: bool) -> str:
    """What DeepSpeed does with `config` from `initialize` to the end of a few steps."""
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    # PyTorch's Adam spares the compilation of DeepSpeed's; offload wants DeepSpeed's for the CPU.
    offload = config.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none") != "none"
    adam = {"type": "AdamW", "params": {"lr": 1e-3} if offload else {"lr": 1e-3, "torch_adam": True}}
    config = {"optimizer": adam, "bf16": {"enabled": True}, **config}
    try:
        engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    except BaseException as error:
        return f"initialize: {type(error).__name__}: {error}"
    try:
        for _ in range(3):
            loss = engine(torch.randn(2, 16, dtype=torch.bfloat16)).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
        if resume:
            with tempfile.TemporaryDirectory() as folder:
                engine.save_checkpoint(folder)
                engine.load_checkpoint(folder)
    except BaseException as error:
        return f"step: {type(error).__name__}: {error}"
    return "nan" if loss.isnan() else "ok"


def main() -> None:
    """Read the cases from the first file and write the outcomes to the second."""
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    open_world()
    import deepspeed

    deepspeed.utils.logger.setLevel(logging.CRITICAL)
    outcomes = {name: outcome(case["config"], resume=case.get("resume", False)) for name, case in cases.items()}
    Path(sys.argv[2]).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
