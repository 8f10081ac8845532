"""What the quickstart runs: two recipes, a ds_config, and questions."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zerokit.choices import Precision
from zerokit.config import DeepSpeedConfig
from zerokit.documents import parse_yaml, read_document
from zerokit.errors import ConfigError
from zerokit.estimation import estimate
from zerokit.files import write_file
from zerokit.hardware.cluster import Cluster
from zerokit.lint import check_document
from zerokit.memory import Estimate
from zerokit.models import ModelShape, load_model_shape
from zerokit.recipe import PYTHON_QUESTIONS
from zerokit.recipe.load import embedded_text
from zerokit.resolving.run import Run
from zerokit.staging import make_folder
from zerokit.writing.build import build_ds_config

ZERO_STAGE = 2

# All gradients of the small model at once. "auto" is the square of the hidden size, which here would be 47
# exchanges a step, and half of its time.
REDUCE_BUCKET_SIZE = 5_000_000

# Of unequal length, and of an odd number, so that the ranks get unequal shares and stop at different steps.
QUESTIONS = (
    'Question: What does "lambda" mean?\nAnswer:',
    'Question: What does "__len__" do?\nAnswer:',
    'Question: What does "continue" mean?\nAnswer:',
    'Question: What is "generator expression" in Python?\nAnswer:',
    'Question: What does "str.strip" do?\nAnswer:',
)
ANOTHER_QUESTION = 'Question: What does "yield" mean? Answer:'
GENERATION_BATCH_SIZE = 2
MAX_NEW_TOKENS = 64


@dataclass(frozen=True)
class Devices:
    """What trains: GPUs, or CPU ranks where there is none."""

    kind: str
    """``GPU`` or ``CPU``."""
    num_ranks: int
    precision: Precision

    @property
    def cluster(self) -> Cluster:
        """This machine."""
        return Cluster(self.num_ranks, gpus_per_node=self.num_ranks)


@dataclass(frozen=True)
class Stage:
    """One training run of the quickstart."""

    name: str
    what: str
    """In plain words, for the person who watches."""
    recipe: dict[str, Any]
    folder: Path

    @property
    def recipe_file(self) -> Path:
        """The recipe, written for the run and left for the person to change."""
        return self.folder.with_suffix(".yaml")


@dataclass(frozen=True)
class Plan:
    """All files and settings of a quickstart below `folder`."""

    folder: Path
    devices: Devices
    stages: tuple[Stage, Stage]

    @property
    def ds_config_file(self) -> Path:
        """The ds_config of both training runs."""
        return self.folder / "ds_config.json"

    @property
    def own_recipe_file(self) -> Path:
        """A recipe for the person's own model and data, to be changed."""
        return self.folder / "mine.yaml"

    @property
    def answers_file(self) -> Path:
        """What the model generates."""
        return self.folder / "answers.jsonl"

    def shape(self) -> ModelShape:
        """The sizes of the model."""
        model = self.stages[0].recipe["model"]
        vocabulary = model["tokenizer"]["train_bpe"]["vocab_size"]
        return load_model_shape({**model["from_config"], "vocab_size": vocabulary})

    def estimate(self, stage: Stage) -> Estimate:
        """The memory that one training run needs per rank, before it runs."""
        return estimate(
            self.shape(),
            num_gpus=self.devices.num_ranks,
            ds_config=quickstart_ds_config(),
            precision=self.devices.precision,
            micro_batch_size=stage.recipe["training"]["per_device_train_batch_size"],
            seq_len=stage.recipe["task"]["seq_len"],
        )


def make_plan(folder: Path, devices: Devices, max_steps: int | None = None) -> Plan:
    """Plan a quickstart below `folder`; `max_steps` cuts both training runs short."""
    corpus = parse_yaml(embedded_text()).data
    corpus["deepspeed"] = str(folder / "ds_config.json")
    corpus["training"]["output_dir"] = str(folder / "corpus")
    # The global batch stays that of two ranks, for which the learning rate was chosen.
    corpus["training"]["per_device_train_batch_size"] = max(1, 8 // devices.num_ranks)
    questions = copy.deepcopy(corpus)
    questions["model"] = {"path": str(folder / "corpus")}
    questions["data"] = {"train": PYTHON_QUESTIONS}
    questions["task"] |= {"packing": False, "seq_len": 256}
    questions["training"] |= {
        "output_dir": str(folder / "model"),
        "num_train_epochs": 3,
        "learning_rate": 1.0e-3,
    }
    if max_steps is not None:
        for recipe in (corpus, questions):
            recipe["training"]["max_steps"] = max_steps
    stages = (
        Stage("corpus", "train on Python's language reference", corpus, folder / "corpus"),
        Stage("questions", "fine-tune on questions and answers", questions, folder / "model"),
    )
    return Plan(folder, devices, stages)


def write_plan(plan: Plan) -> None:
    """Write the ds_config and both recipes, and check the ds_config as ``zerokit check`` would.

    Raises:
        ConfigError: the ds_config has an error, which would be a bug of zerokit.
        ZerokitError: a link is in the place of a folder, or a file cannot be written.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    for stage in plan.stages:
        make_folder(stage.folder)
    config = quickstart_ds_config()
    write_file(plan.ds_config_file, json.dumps(config.dump(), indent=2) + "\n")
    document = read_document(plan.ds_config_file)
    report = check_document(document, Run(target="trainer", cluster=plan.devices.cluster))
    for problem in report.findings:
        if problem.severity == "error":
            raise ConfigError(problem.message, where=document.where(problem.path), hint=problem.hint)
    if not plan.own_recipe_file.exists():  # it may have been changed since the last time
        write_file(plan.own_recipe_file, embedded_text("finetune.yaml"))
    for stage in plan.stages:
        write_file(stage.recipe_file, yaml.safe_dump(stage.recipe, sort_keys=False))


def quickstart_ds_config() -> DeepSpeedConfig:
    """ZeRO-2, everything else as the recipe's training arguments say."""
    data = build_ds_config(zero_stage=ZERO_STAGE, precision=None).dump()
    data["zero_optimization"]["reduce_bucket_size"] = REDUCE_BUCKET_SIZE
    return DeepSpeedConfig.model_validate(data)
