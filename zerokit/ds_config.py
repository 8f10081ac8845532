"""ds_configs from Python: a config that can check and resolve itself, and `zerokit.check` of any other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError

from zerokit.choices import Target
from zerokit.config.load import check_ds_config, load_ds_config, plain, read_ds_config
from zerokit.config.sections import DeepSpeedConfig
from zerokit.documents import Document, dotted, read_document
from zerokit.errors import ConfigError, check_choice
from zerokit.files import json_text
from zerokit.findings import DEFAULT_SEVERITY, SEVERITIES, Severity
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hardware.cluster import Cluster
from zerokit.lint import Report
from zerokit.lint.files import check_file
from zerokit.lint.refusals import with_refusals
from zerokit.lint.selection import Selection
from zerokit.models import ModelShape, load_model_shape
from zerokit.recipe import Recipe, load_recipe
from zerokit.releases.versions import Version, parse_version
from zerokit.resolving.arguments import check_arguments
from zerokit.resolving.run import Run
from zerokit.resolving.trace import Resolution, resolve
from zerokit.validation import with_checked_types


@with_checked_types
def check(
    config: str | Path | Mapping[str, Any] | DeepSpeedConfig,
    *,
    target: Target | None = None,
    num_gpus: int | None = None,
    gpus_per_node: int = GPUS_PER_NODE,
    model: str | Path | Mapping[str, Any] | ModelShape | None = None,
    recipe: str | Path | Recipe | None = None,
    gpu: str | None = None,
    gpu_memory_bytes: int | None = None,
    host_memory_bytes: int | None = None,
    deepspeed_version: str | Version | None = None,
    severity: Severity = DEFAULT_SEVERITY,
) -> Report:
    """Report every mistake in a ds_config, or in the YAML of ``accelerate launch``, like ``zerokit check``.

    Args:
        config: a file, or the config itself.
        target: the program that passes the config to DeepSpeed; None: unknown, or the Trainer with a recipe.
        num_gpus: GPUs of the run.
        gpus_per_node: GPUs of one node; a run of fewer is on one.
        model: a shape, or an argument of :func:`zerokit.models.load_model_shape`.
        recipe: the recipe that uses the config, or its file.
        gpu: the card, by its name (:func:`zerokit.hardware.gpus.find_gpu`).
        gpu_memory_bytes: of one GPU, in place of the card's.
        host_memory_bytes: of one node.
        deepspeed_version: of the cluster, such as ``"0.16.4"``; None: the newest that zerokit knows.
        severity: the least severity to report.

    Raises:
        DocumentError: a file cannot be read.
        ModelError: there is no such model.
        RecipeError: the recipe is not valid.
        ZerokitError: there is no such target, card or release of DeepSpeed, or the GPUs do not fill nodes.
    """
    if isinstance(recipe, str | Path):
        recipe = load_recipe(recipe).recipe
    if isinstance(deepspeed_version, str):
        deepspeed_version = parse_version(deepspeed_version)
    run = Run.of(
        target=target,
        num_gpus=num_gpus,
        gpus_per_node=gpus_per_node,
        gpu=gpu,
        model=_shape(model),
        recipe=recipe,
        gpu_memory_bytes=gpu_memory_bytes,
        host_memory_bytes=host_memory_bytes,
        deepspeed_version=deepspeed_version,
    )
    run.cluster.check_given_nodes()
    check_choice("severity", severity, SEVERITIES)
    return check_file(_document(config), run, select=Selection(least=severity).of)


_check = check


class DSConfig(DeepSpeedConfig):
    """A valid ds_config.

    Keywords are the keys of the JSON, sections are dicts; sections read back as objects::

        config = DSConfig(train_micro_batch_size_per_gpu=1, zero_optimization={"stage": 3})
        config.zero_optimization.stage               # 3
        config.zero_optimization.reduce_bucket_size  # 500000000, DeepSpeed's default
        TrainingArguments(..., deepspeed=config.to_dict())
        deepspeed.initialize(..., config=config.to_dict())

    Raises:
        ConfigError: a key or value is not valid; names the first one and how many more there are.
    """

    _document: Document | None = PrivateAttr(default=None)

    def __init__(self, **keys: Any) -> None:
        try:
            super().__init__(**plain(keys))
        except ValidationError:
            first, *others = check_ds_config(Document(keys, "DSConfig"))
            more = f" (and {len(others)} more)" if others else ""
            raise ConfigError(first.message + more, where=dotted(first.path), hint=first.hint) from None

    def __eq__(self, other: object) -> bool:
        """Whether both set the same, wherever they were read from."""
        return isinstance(other, DSConfig) and self.to_dict() == other.to_dict()

    __hash__ = None  # type: ignore[assignment]  # equal by what they set, some of it in lists

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file; findings later have its line numbers.

        Unlike keywords, a file may have mistakes that are only warnings: misspelled values that DeepSpeed
        accepts are corrected, and keys without meaning are dropped.

        Raises:
            DocumentError: the file cannot be read.
            ConfigError: a key or value is not valid; names the first one and how many more there are.
        """
        document = read_ds_config(path)
        config = cls(**load_ds_config(document).dump())
        config._document = document
        return config

    check = _check
    """:func:`check` of this config."""

    @with_checked_types
    def resolve(
        self,
        *,
        num_gpus: int,
        target: Target = "trainer",
        model: str | Path | Mapping[str, Any] | ModelShape | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Resolution:
        """Every value that DeepSpeed will use, with its origin, as ``zerokit resolve`` prints it.

        Args:
            num_gpus: GPUs of the run.
            target: the program that passes the config to DeepSpeed and fills "auto".
            model: a shape, or an argument of :func:`zerokit.models.load_model_shape`; sizes follow from it.
            arguments: of the Trainer, or of the script under accelerate (see
                :mod:`zerokit.resolving.arguments`); the others have their defaults.

        Raises:
            ConfigError: no such target or argument.
            ModelError: there is no such model.
        """
        cluster = Cluster(num_gpus)
        run = Run(target=target, cluster=cluster, model=_shape(model), given=dict(arguments or {}))
        check_arguments(target, run.given, run.where)
        document = self._as_document()
        return with_refusals(resolve(document, run), document, run)

    def to_dict(self) -> dict[str, Any]:
        """A copy of the keys that are set, as plain data for DeepSpeed, transformers and accelerate."""
        return self.dump()

    def __repr__(self) -> str:
        """The keys that are set."""
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.to_dict().items())})"

    __str__ = __repr__

    def to_json(self) -> str:
        """The text of the file, ending with a newline."""
        return json_text(self.to_dict())

    def _as_document(self) -> Document:
        return self._document or Document(self.to_dict(), "ds_config")


def _document(config: str | Path | Mapping[str, Any] | DeepSpeedConfig) -> Document:
    if isinstance(config, DSConfig):
        return config._as_document()
    if isinstance(config, DeepSpeedConfig):
        return Document(config.dump(), "ds_config")
    if isinstance(config, Mapping):
        return Document(dict(config), "ds_config")
    return read_document(config, lenient=True)


def _shape(model: str | Path | Mapping[str, Any] | ModelShape | None) -> ModelShape | None:
    if model is None or isinstance(model, ModelShape):
        return model
    return load_model_shape(model)
