"""Trains a small model with each config on one CPU, and says what became of rates, betas and weights.

Run as a script with two files: a JSON object {name: {"config": ..., "client": class of torch.optim or null}}
to read, and one to write, {name: {"error": ...}} or {name: {"rate", "betas", "moved", "norm", "kind"}}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.lint.one_rank import open_world

STEPS = 8


def outcome(config: dict[str, Any], client: str | None) -> dict[str, Any]:
    """What a few steps with `config` do.

    Returns:
        `rate` and `betas` of the first group of parameters at the end; `moved`, the change of the first
        weight matrix (NaN as None); `norm`, the last norm that DeepSpeed reports; and `kind`, the class of
        the optimizer that it wraps.
    """
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    before = model[0].weight.detach().float().clone()
    more = {} if client is None else {"optimizer": getattr(torch.optim, client)(model.parameters(), lr=1e-3)}
    try:
        engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=config, **more
        )
        for step in range(STEPS):
            inputs = torch.randn(2, 16, generator=torch.Generator().manual_seed(step))
            dtype = next(engine.module.parameters()).dtype
            engine.backward(engine(inputs.to(dtype)).float().pow(2).mean())
            engine.step()
        moved = (engine.module[0].weight.detach().float() - before).norm()
        group = engine.optimizer.param_groups[0]
        norm = engine.get_global_grad_norm()
        return {
            "rate": float(group["lr"]),
            "betas": group.get("betas"),
            "moved": None if moved.isnan() else moved.item(),
            "norm": None if norm is None else float(norm),
            "kind": type(engine.basic_optimizer).__name__,
        }
    except BaseException as error:  # exit() too
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read the cases from the first file and write the outcomes to the second."""
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    open_world()
    import torch

    torch.compiler.set_stance("force_eager")  # Muon's update takes ten seconds to compile
    outcomes = {name: outcome(case["config"], case.get("client")) for name, case in cases.items()}
    Path(sys.argv[2]).write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
