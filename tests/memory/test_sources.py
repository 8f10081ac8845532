"""Every function that a term cites is there, in the installed DeepSpeed and transformers."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.memory.runs import ds_config, run
from zerokit.choices import OptimizerKind
from zerokit.memory import Generation, Lora, estimate
from zerokit.memory.optimizers import optimizer_facts
from zerokit.models import load_model_shape

pytestmark = pytest.mark.torch

CPU, NVME = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/tmp"}
FP32_GRADIENTS: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}}


def _sources() -> set[str]:
    llama, moe = load_model_shape("meta-llama/Llama-3.2-1B"), load_model_shape("Qwen/Qwen1.5-MoE-A2.7B")
    wanted: list[dict[str, Any]] = [
        *({"stage": stage} for stage in range(4)),
        *({"stage": stage, "precision": "fp16", "seq_len": 128} for stage in range(4)),
        {"stage": 0, "precision": "fp32"},
        {"stage": 1, "config": ds_config(1, **FP32_GRADIENTS)},
        {"stage": 2, "config": ds_config(2, **FP32_GRADIENTS)},
        {"stage": 2, "zero": {"offload_optimizer": CPU}, "gradient_accumulation_steps": 2},
        {"stage": 3, "zero": {"offload_optimizer": CPU, "offload_param": CPU}, "precision": "fp16"},
        {"stage": 3, "zero": {"offload_optimizer": NVME, "offload_param": {**NVME, "max_in_cpu": 1000}}},
        {"stage": 3, "model": moe},
        {"stage": 2, "optimizer": "adagrad"},
        {"stage": 2, "config": ds_config(2, optimizer={"type": "Adagrad"})},
        {"stage": 3, "generation": Generation(1, 128), "lora": Lora(8), "gradient_checkpointing": True},
    ]
    sources = set()
    for keys in wanted:
        stage = keys.pop("stage")
        sources |= {term.source for term in estimate(run(stage, **{"model": llama, **keys})).terms}
    kinds: tuple[OptimizerKind, ...] = ("fused_adam", "cpu_adam", "lion", "lamb")
    for kind in kinds:
        sources.add(optimizer_facts(kind).source)
    return sources


CITED = re.compile(r"((?:deepspeed|transformers|torch)(?:/| )\S+?\.py) ((?:[A-Za-z_][\w.]*)(?:, [A-Za-z_][\w.]*)*)")


def _citations() -> list[tuple[str, str]]:
    found = set()
    for source in _sources():
        for file, names in CITED.findall(source):
            for name in names.split(", "):
                if "_" in name or name == "step" or name[0].isupper():
                    found.add((file.replace(" ", "/"), name))
    return sorted(found)


@cache
def _text(file: str) -> str:
    package, _, rest = file.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / rest).read_text(encoding="utf-8")


def test_there_are_citations() -> None:
    assert len(_citations()) > 20


@pytest.mark.parametrize(("file", "name"), _citations())
def test_what_is_cited_exists(file: str, name: str) -> None:
    text = _text(file)
    for part in name.split("."):
        known = (f"def {part}(", f"class {part}", f"self.{part} =", f"{part} =")
        assert any(definition in text for definition in known), part
