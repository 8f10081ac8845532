"""Points of the grid: one training run each, rehearsed and estimated from the same description."""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from tests.rehearsal import commands
from zerokit.config import DeepSpeedConfig
from zerokit.hardware.cluster import Cluster
from zerokit.memory import Ia3, Lora, TrainingRun
from zerokit.models import catalogue, load_model_shape

SCRIPT = Path(__file__).with_name("train_one.py")
_TRAINED = {"BartModel": "BartForConditionalGeneration"}
"""Classes without a loss, and what is trained in their place."""
STEPS = 3
"""ZeRO-3 records the order of modules in the first two steps, and prefetches from the third on."""


@dataclass(frozen=True)
class Point:
    """One training run."""

    script: ClassVar[Path] = SCRIPT
    name: str
    model: str
    """In the catalogue."""
    zero: dict[str, Any]
    """The section zero_optimization."""
    num_gpus: int = 8
    micro_batch_size: int = 1
    seq_len: int = 2048
    precision: str = "bf16"
    accumulation: int = 1
    checkpointing: bool = False
    attention: str = "sdpa"
    optimizer: str | None = None
    """What the script makes; None: AdamW in the ds_config."""
    ds_optimizer: str = "AdamW"
    lora: dict[str, Any] | None = None
    ia3: dict[str, Any] | None = None
    load_in_4bit: bool = False
    double_quant: bool = False
    changes: dict[str, Any] = field(default_factory=dict)
    """To the model's config."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further sections of the ds_config."""
    gpus_per_node: int = 8

    @property
    def config(self) -> dict[str, Any]:
        """The model's config.json."""
        known = catalogue.find(self.model)
        assert known is not None, self.model
        return {**known.config, **self.changes}

    @property
    def ds_config(self) -> dict[str, Any]:
        """What DeepSpeed is given."""
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": self.micro_batch_size,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": 1.0,
            "zero_optimization": self.zero,
            "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
        }
        if self.precision == "bf16":
            config["bf16"] = {"enabled": True}
        elif self.precision == "fp16":
            config["fp16"] = {"enabled": True, "initial_scale_power": 4}
        if self.optimizer is None:
            config["optimizer"] = {"type": self.ds_optimizer, "params": {"lr": 1e-5}}
        return {**config, **self.extra}

    def training_run(self) -> TrainingRun:
        """The run that the estimate gets."""
        return TrainingRun(
            model=load_model_shape(self.config),
            ds_config=DeepSpeedConfig.model_validate(self.ds_config),
            cluster=Cluster(self.num_gpus, self.gpus_per_node),
            micro_batch_size=self.micro_batch_size,
            seq_len=self.seq_len,
            gradient_checkpointing=self.checkpointing,
            attention=self.attention,  # type: ignore[arg-type]
            optimizer=self.optimizer,  # type: ignore[arg-type]
            lora=Lora(**_names(self.lora)) if self.lora else None,
            ia3=Ia3(**_names(self.ia3)) if self.ia3 else None,
            load_in_4bit=self.load_in_4bit,
            double_quant=self.double_quant,
        )

    def description(self) -> dict[str, Any]:
        """What the script reads."""
        shape = load_model_shape(self.config)
        return {
            **{name: value for name, value in asdict(self).items() if name not in ("name", "changes", "extra")},
            "config": self.config,
            "architecture": _TRAINED.get(shape.architecture, shape.architecture),
            "ds_config": self.ds_config,
            "steps": STEPS,
        }


def _names(adapter: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in adapter.items()}


def key_of(point: Point) -> str:
    """Of the rehearsal in a cache: what was run, by what, with which versions."""
    versions = [f"{name} {version(name)}" for name in ("torch", "deepspeed", "transformers", "peft")]
    parts = [json.dumps(point.description(), sort_keys=True), point.script.read_text(encoding="utf-8"), *versions]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def rehearse(point: Point, cache: Path | None = None, *, forked: bool = False) -> dict[str, Any]:
    """The report of a rehearsal of `point`, from `cache` if it is there; `forked` as of the command."""
    file = cache / f"{key_of(point)}.json" if cache else None
    if file is not None and file.is_file():
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return known
    with tempfile.TemporaryDirectory() as folder:
        description = Path(folder) / "point.json"
        description.write_text(json.dumps(point.description()), encoding="utf-8")
        words = ["--num-gpus", point.num_gpus, "--gpus-per-node", point.gpus_per_node]
        words += ["--gpu-memory", "2000GiB", "--format", "json", "--steps", STEPS, point.script, description]
        done = commands.rehearse(*words, cwd=Path(folder), forked=forked)
    if done.code not in (0, 1):
        raise RuntimeError(f"{point.name}: {done.err[-3000:]}")
    if file is not None:
        file.write_text(done.out, encoding="utf-8")
    return done.report
