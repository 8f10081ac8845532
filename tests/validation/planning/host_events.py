"""Fits the host's times of `zerokit/step_time/kernels.json` to rehearsals that the host decides.

    python -m tests.validation.planning.host_events [--write]

Narrow models with short sequences are rehearsed on virtual GPUs, which then wait for the host. By least squares of
the logarithms, each time is moved from what the file has only as far as the rehearsals demand. The rows of
`kernel_table`, which are times of whole layers, come first: they are of the same host. results/host_events.json has
the rehearsals: remove it when costs have changed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.validation.memory.rehearsed import Point
from tests.validation.planning.step_times import predict, rehearse
from zerokit.step_time import layers

KERNELS = Path(layers.__file__).with_name("kernels.json")
RECORD = Path(__file__).parents[1] / "results" / "host_events.json"
LAYERS = 16
"""Of each model. With fewer, passes are small and their Python costs less, which formulas leave out."""
FIXED = ("hook_0", "ulysses_forward", "ulysses_backward")
"""`kernel_table` needs the first; the others occur with sequence parallelism alone."""
_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_NARROW = {
    "mistralai/Mistral-7B-v0.1": {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
    | {"num_key_value_heads": 2, "vocab_size": 1024},
    "openai-community/gpt2": {"n_embd": 256, "n_head": 4, "vocab_size": 1024},
}
_VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"checkpointing": True, "accumulation": 2},
    {"lora": {"rank": 8, "target_modules": _LINEAR}},
    {"num_gpus": 1, "accumulation": 4},
    {"offload": "optimizer"},
    {"offload": "all"},
    {"offload": "all", "checkpointing": True, "num_gpus": 16},
)
_DEVIATION = 0.5
"""Of a time's logarithm, before any rehearsal."""
_BUMP, _ROUNDS = 0.05, 6


def points() -> Iterator[Point]:
    """Each stage with each variant that it has."""
    for (model, sizes), stage, variant in itertools.product(_NARROW.items(), range(4), _VARIANTS):
        kind = dict(variant)
        offload = kind.pop("offload", None)
        if (offload and stage < (3 if offload == "all" else 1)) or ("lora" in kind and model.startswith("openai")):
            continue
        zero: dict[str, Any] = {"stage": stage, "reduce_bucket_size": 200_000}
        if stage == 3:
            zero |= {"stage3_prefetch_bucket_size": 100_000, "stage3_param_persistence_threshold": 2000}
        if offload:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if offload == "all":
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        depth = {"n_layer" if "gpt2" in model else "num_hidden_layers": LAYERS}
        extra = {"gradient_accumulation_steps": kind.get("accumulation", 1)}
        yield Point(model, model, zero, seq_len=128, changes={**sizes, **depth}, extra=extra, **kind)


def logarithms(found: list[tuple[dict[str, Any], Point, dict[str, Any]]]) -> np.ndarray:
    """Of predicted over rehearsed seconds."""
    ratios = []
    for drawn, point, real in found:
        seconds = predict(drawn, real["host_threads"], point).seconds
        ratios.append(np.log(seconds / real["step_seconds"]))
    return np.array(ratios)


def fitted(found: list[tuple[dict[str, Any], Point, dict[str, Any]]]) -> dict[str, float]:
    """The times that explain the rehearsals; the table has them afterwards."""
    host = layers.table()["host"]
    names = [name for name in host if name not in FIXED]
    before = {name: host[name] for name in names}
    moved = np.zeros(len(names))
    for _ in range(_ROUNDS):
        errors = logarithms(found)
        slopes = np.empty((len(found), len(names)))
        for place, name in enumerate(names):
            now = host[name]
            host[name] = now * np.exp(_BUMP)
            slopes[:, place] = (logarithms(found) - errors) / _BUMP
            host[name] = now
        # Errors of a tenth are as likely as a time that is wrong by its deviation.
        weight = (0.1 / _DEVIATION) ** 2 * np.eye(len(names))
        moved += np.linalg.solve(slopes.T @ slopes + weight, -slopes.T @ errors - weight @ moved)
        for name, by in zip(names, moved, strict=True):
            host[name] = before[name] * float(np.exp(by))
    return {name: host[name] for name in names}


def main() -> None:
    """Rehearse what is missing, fit, and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the times into kernels.json")
    options = parser.parse_args()
    known: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    drawn: dict[str, Any] = {"card": "H100-SXM", "network_gbit_s": None}
    found = []
    for point in points():
        key = json.dumps(point.description(), sort_keys=True)
        if key not in known:
            rehearsed = rehearse(drawn, point)
            if "error" in rehearsed:
                raise RuntimeError(rehearsed["error"])
            known[key] = rehearsed
            RECORD.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        found.append((drawn, point, known[key]))
        print(f"{logarithms(found[-1:])[0]:+.2f} {point.model} {point.zero} {point.num_gpus} {point.lora}", flush=True)
    earlier = np.abs(np.expm1(logarithms(found)))
    times = fitted(found)
    later = np.abs(np.expm1(logarithms(found)))
    print(f"{len(found)} rehearsals: median {statistics.median(earlier):.1%}, worst {earlier.max():.1%}")
    print(f"fitted: median {statistics.median(later):.1%}, worst {later.max():.1%}; {times}")
    if options.write:
        text = KERNELS.read_text(encoding="utf-8")
        for name, microseconds in times.items():
            text = re.sub(rf'("{name}": )[\d.]+', rf"\g<1>{round(microseconds)}", text, count=1)
        KERNELS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
