"""`zerokit.estimate`: the estimate in Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_type_hints

from zerokit.choices import Attention, ChunkedLoss, OffloadDevice, OptimizerKind, Precision, Target, ZeroStage
from zerokit.config import DeepSpeedConfig
from zerokit.errors import ConfigError, ZerokitError, did_you_mean
from zerokit.estimation.advice import Advice, advise, plain_torch
from zerokit.estimation.as_json import as_data
from zerokit.estimation.fit import Fit, verdict
from zerokit.estimation.request import Question, Runs
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import DATA_PARALLEL, Cluster, Parallelism
from zerokit.hardware.gpus import some_gpu
from zerokit.memory import Estimate, Generation, Ia3, LearnedTokens, Lora
from zerokit.memory import estimate as estimate_run
from zerokit.models import ModelShape, load_model_shape
from zerokit.reporting.terminal import plain_lines
from zerokit.units import format_bytes, is_like_count, parse_count, quantity
from zerokit.validation import check_types, with_checked_types

_LORA = {
    "r": "rank",
    "rank": "rank",
    "target_modules": "target_modules",
    "use_dora": "dora",
    "dora": "dora",
    "lora_dropout": "dropout",
    "dropout": "dropout",
}
"""Key of peft's LoraConfig, or our field -> our field."""
_WITHOUT_MEMORY = ("lora_alpha", "task_type", "use_rslora", "init_lora_weights")
"""Keys of peft's LoraConfig that do not change the memory."""


@dataclass(frozen=True, repr=False, kw_only=True)
class RunEstimate(Estimate):
    """An estimate, with the card's verdict."""

    question: Question
    """What was asked."""
    fit: Fit | None = None
    """Need and memory of GPU and node; None if no card was named."""

    @property
    def fits(self) -> bool:
        """Whether the largest of the estimate fits.

        If the memory of the hosts is not known, this assumes that they have enough: ``repr`` says how much.

        Raises:
            ZerokitError: no card was named.
        """
        if self.fit is None:
            raise ZerokitError("no card is named", where="gpu", hint="Name one: estimate(..., gpu='H100')")
        return self.fit.verdict == "fits"

    @cached_property
    def advice(self) -> list[Advice]:
        """Changes that make the run fit, the cheapest first; empty if it fits, or no card was named."""
        return [] if self.fit is None else advise(self.question, self, self.fit)

    def to_dict(self) -> dict[str, Any]:
        """What ``zerokit estimate --format json`` prints."""
        return as_data(self, self.fit, advice=self.advice)

    def table(self, *, details: bool = False) -> str:
        """What ``zerokit estimate`` prints, as text; with `details`, every term."""
        from zerokit.estimation.table import estimate_parts

        plain = plain_torch(self.question, self, Runs())
        parts = estimate_parts(self, self.fit, None, self.advice, plain, details=details)
        return "".join(f"{line}\n" for line in plain_lines(parts))

    def __repr__(self) -> str:
        """Model, GPUs, stage, peak and verdict, with what the verdict depends on."""
        run, device = self.run, self.device
        model = f"{run.model:,} parameters" if isinstance(run.model, int) else run.model.name
        without = "" if self.activations_counted else " without activations"
        fit = ""
        if self.fit is not None:
            condition = self.fit.host.condition if self.fits else ""
            fit = f", {self.fit.verdict} on {format_bytes(self.fit.gpu_memory_bytes)}{condition}"
        return (
            f"<{type(self).__name__}: {model} on {quantity(run.world_size, 'GPU')}, {run.sharding}: "
            f"peak {format_bytes(device.peak_bytes)}{without}{fit}>"
        )


@with_checked_types
def estimate(
    model: str | Path | Mapping[str, Any] | ModelShape | int,
    *,
    num_gpus: int,
    gpus_per_node: int = GPUS_PER_NODE,
    parallelism: Parallelism = DATA_PARALLEL,
    gpu: str | None = None,
    gpu_memory_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    ds_config: str | Path | Mapping[str, Any] | DeepSpeedConfig | None = None,
    zero_stage: ZeroStage | None = None,
    offload_optimizer: OffloadDevice | None = None,
    offload_param: OffloadDevice | None = None,
    precision: Precision | None = None,
    target: Target = "trainer",
    micro_batch_size: int | None = None,
    eval_batch_size: int | None = None,
    seq_len: int | None = None,
    gradient_accumulation_steps: int | None = None,
    gradient_checkpointing: bool = False,
    attention: Attention | None = None,
    optimizer: OptimizerKind | None = None,
    lora: int | Mapping[str, Any] | Lora | None = None,
    ia3: Ia3 | None = None,
    learned_tokens: LearnedTokens | None = None,
    load_in_4bit: bool = False,
    double_quant: bool = False,
    num_trainable_parameters: int | None = None,
    frozen_modules: Sequence[str] = (),
    chunked_loss: ChunkedLoss | None = None,
    autocast: bool = False,
    packing: bool = False,
    tiled_mlp: bool = False,
    activation_offloading: bool = False,
    generation: Generation | None = None,
    loads_full_copy_per_rank: bool | None = None,
) -> RunEstimate:
    """Estimate the memory of a training run, without running it and without torch.

    ::

        answer = zerokit.estimate(
            "llama-3.1-8b", num_gpus=4, zero_stage=2, micro_batch_size=1, seq_len=4096, gpu="H100"
        )
        answer.fits, answer.device.peak_bytes, answer.device.peak_phase
        print(answer.table())

    Parameters not listed here are fields of :class:`zerokit.estimation.Question`. They are repeated in the
    signature so that editors and type checkers see them.

    Args:
        model: a shape, or what :func:`zerokit.models.load_model_shape` accepts, or a bare number of
            parameters such as ``"7.5B"``: then only model states and buffers are counted.
        num_gpus: ranks, one GPU each.
        gpus_per_node: GPUs of one node.
        gpu: the card, by its name (:func:`zerokit.hardware.gpus.find_gpu`); None: no verdict.
        gpu_memory_bytes: of one GPU, in place of the card's.
        host_memory_bytes: of one node.
        lora: the rank, or a dict such as ``{"r": 16, "target_modules": "all-linear"}``.

    Raises:
        ZerokitError: no such model or card, a ds_config with errors, a size that cannot be, an argument of
            another type, or settings that do not go together.
    """
    given = locals()
    settings = {field.name: given[field.name] for field in fields(Question) if field.name in given}
    cluster = Cluster(num_gpus, gpus_per_node, some_gpu(gpu, gpu_memory_bytes), host_memory_bytes)
    settings |= {"model": as_model(model), "cluster": cluster, "lora": as_lora(lora)}
    settings["frozen_modules"] = tuple(frozen_modules)
    question = Question(**settings)
    answer = estimate_run(Runs().training_run(question))
    memory = cluster.gpu_memory_bytes
    parts = {field.name: getattr(answer, field.name) for field in fields(answer)}
    return RunEstimate(**parts, question=question, fit=None if memory is None else verdict(answer, memory))


def as_lora(given: int | Mapping[str, Any] | Lora | None) -> Lora | None:
    """An adapter from its rank, or from keys of peft's LoraConfig.

    Raises:
        ConfigError: a key that the estimate does not know, or no rank.
    """
    if given is None or isinstance(given, Lora):
        return given
    keys = given if isinstance(given, Mapping) else {"r": given}
    settings: dict[str, Any] = {}
    for key, value in keys.items():
        if key in _LORA:
            settings[_LORA[key]] = value
        elif key not in _WITHOUT_MEMORY:
            hint = did_you_mean(str(key), _LORA)
            raise ConfigError("the estimate does not know this key", where=f"lora.{key}", hint=hint)
    if "rank" not in settings:
        raise ConfigError("the rank is not known", where="lora", hint='Write {"r": 16}')
    if isinstance(settings.get("dropout"), int | float):
        settings["dropout"] = settings["dropout"] > 0
    targets = settings.get("target_modules")
    if isinstance(targets, list | set):
        check_types({"target_modules": list(targets)}, {"target_modules": Sequence[str]}, where="lora.")
        settings["target_modules"] = tuple(sorted(targets))
    check_types(settings, get_type_hints(Lora), where="lora.")
    return Lora(**settings)


def as_model(model: str | Path | Mapping[str, Any] | ModelShape | int) -> ModelShape | int:
    """A shape, or a bare number of parameters.

    Raises:
        ZerokitError: it is neither; the message is that for a model.
    """
    if isinstance(model, ModelShape | int):
        return model
    if isinstance(model, str):
        count = bare_count(model)
        if count is not None:
            return count
    # Models of families without code are built on torch's meta device, which imports torch; all others need
    # none.
    return load_model_shape(model)


def bare_count(text: str) -> int | None:
    """The number in ``"7.5B"``; None for other text, and for the name of a file or folder.

    Raises:
        ZerokitError: the text is meant as a number of parameters, and is not one.
    """
    if not is_like_count(text) or os.path.exists(text):  # noqa: PTH110 - any length
        return None
    try:
        count = parse_count(text)
    except ZerokitError:
        count = 0
    if count < 1:
        raise ZerokitError(f"'{text}' is no number of parameters", where="model", hint="Write it like 7.5B")
    return count
