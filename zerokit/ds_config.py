"""The face of zerokit's Python API for ds_configs: a config that can check and resolve itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr, ValidationError

from zerokit.config.load import check_ds_config, load_ds_config, plain
from zerokit.config.root import DeepSpeedConfig
from zerokit.documents import Document, dotted, read_document
from zerokit.errors import ConfigError
from zerokit.resolving.auto import Target

if TYPE_CHECKING:
    from zerokit.lint import Report
    from zerokit.models import ModelShape
    from zerokit.resolving.trace import Resolution


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
        """Read a file; what is found in it later bears its lines.

        Unlike in keywords, what is only worth a warning is let through: a value that DeepSpeed reads for
        what it plainly means is put right, a key that means nothing is left out.

        Raises:
            DocumentError: the file cannot be read.
            ConfigError: a key or value is not valid; names the first one and how many more there are.
        """
        document = read_document(path)
        config = cls(**load_ds_config(document).dump())
        config._document = document
        return config

    def check(
        self,
        *,
        target: Target | None = None,
        world_size: int | None = None,
        model: str | Path | Mapping[str, Any] | ModelShape | None = None,
        **run: Any,
    ) -> Report:
        """What ``zerokit check`` says.

        Args:
            target: who hands the config to DeepSpeed: ``trainer``, ``accelerate`` or ``deepspeed``.
            world_size: number of GPUs.
            model: a shape, or what :func:`zerokit.models.load_model_shape` takes.
            run: more of what is known of the run: fields of :class:`zerokit.lint.Subject`.

        Raises:
            ModelError: there is no such model.
        """
        from zerokit.lint import check_document

        return check_document(
            self._as_document(), target=target, num_gpus=world_size, model=_shape(model), **run
        )

    def resolve(
        self,
        *,
        world_size: int,
        target: Target = "trainer",
        model: str | Path | Mapping[str, Any] | ModelShape | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Resolution:
        """Every value that DeepSpeed will use, with where it comes from, as ``zerokit resolve`` prints it.

        Args:
            world_size: number of GPUs.
            target: who hands the config to DeepSpeed, and so fills "auto".
            model: a shape, or what :func:`zerokit.models.load_model_shape` takes; sizes follow from it.
            arguments: of the Trainer, or of the script under accelerate (see
                :mod:`zerokit.resolving.arguments`); the others have their defaults.

        Raises:
            ModelError: there is no such model.
        """
        from zerokit.resolving.arguments import Arguments
        from zerokit.resolving.trace import Run, resolve

        shape = _shape(model)
        run = Run(
            Arguments(target, dict(arguments or {})),
            world_size,
            hidden_size=shape.hidden_size_for_trainer if shape else None,
            hidden_size_is_nested=shape is not None and shape.hidden_size_for_accelerate is None,
        )
        return resolve(self._as_document(), run)

    def to_dict(self) -> dict[str, Any]:
        """What was set, as plain data that DeepSpeed, transformers and accelerate take. A copy each time."""
        return self.dump()

    def to_json(self) -> str:
        """The text of the file, ending with a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def _as_document(self) -> Document:
        return self._document or Document(self.to_dict(), "ds_config")


def _shape(model: str | Path | Mapping[str, Any] | ModelShape | None) -> ModelShape | None:
    from zerokit.models import ModelShape, load_model_shape

    if model is None or isinstance(model, ModelShape):
        return model
    return load_model_shape(model)
