"""Trains with tensor parallelism on two and four ranks, and records how far that is from one process.

``python -m tests.validation.parallelism.tensor_runs`` writes ``tests/validation/results/tensor_parallel.json``.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.validation.parallelism.runs import Trained, make_start, recipe_of, train

RESULTS = Path(__file__).parents[1] / "results" / "tensor_parallel.json"
CASES: dict[str, dict[str, Any]] = {
    f"stage {stage}, {ranks} ranks, accumulation {steps}": {"stage": stage, "ranks": ranks, "steps": steps}
    for stage in (3, 2, 1, 0)
    for ranks, steps in ((2, 1), (2, 3), (4, 3))
} | {
    "packing": {"stage": 3, "ranks": 2, "steps": 3, "task": {"packing": True}},
    "padded rows": {"stage": 1, "ranks": 2, "steps": 3, "task": {"padding_free": False}},
    "tied embeddings": {"stage": 3, "ranks": 2, "steps": 3, "config": {"tie_word_embeddings": True}},
    **{f"chunked loss, stage {stage}": {"stage": stage, "ranks": 2, "steps": 3, "chunks": True} for stage in (3, 1)},
    "all logits": {"stage": 1, "ranks": 2, "steps": 1, "task": {"chunked_loss": False}},
}


def compare(
    folder: Path,
    known: dict[str, Trained],
    *,
    stage: int,
    ranks: int,
    steps: int,
    config: dict[str, Any] | None = None,
    chunks: bool = False,
    **sections: Any,
) -> tuple[Trained, Trained]:
    """A run on groups of two ranks, and the same run on one process; `known` keeps the latter.

    `chunks`: the groups compute the loss in small chunks.
    """
    folder.mkdir(parents=True)
    make_start(folder, **(config or {}))
    groups, same = ranks // 2, json.dumps([steps, config, sections])
    sections["training"] = {"learning_rate": 0.1}
    if same not in known:
        known[same] = train(recipe_of(folder, folder / "one", stage=1, split=(4, steps), **sections), ranks=1)
    group = recipe_of(folder, folder / "group", stage=stage, tensor=2, split=(4 // groups, steps), **sections)
    return train(group, ranks=ranks, chunks=chunks), known[same]


def differences(group: Trained, one: Trained) -> dict[str, float]:
    """The largest differences; without ZeRO DeepSpeed computes no gradient norm in fp32."""
    if group.engine[1] == 0:
        group, one = replace(group, grad_norms=[0.0]), replace(one, grad_norms=[0.0])
    return group.difference(one)


def main() -> None:
    """Run all cases."""
    found: dict[str, Any] = {}
    known: dict[str, Trained] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, case) in enumerate(CASES.items()):
            group, one = compare(Path(folder) / str(number), known, **case)
            assert group.tokens == one.tokens, name
            found[name] = {"engine": group.engine[0], "stage": group.engine[1], **differences(group, one)}
            print(name, found[name], flush=True)
            RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
