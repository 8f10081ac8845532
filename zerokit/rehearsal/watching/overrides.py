"""Changes to a run without touching its script: its ds_config, micro-batch, checkpointing, output folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerokit.config.load import check_ds_config, plain, read_ds_config
from zerokit.documents import Document, dotted, has_value, split_dotted, with_value, without
from zerokit.errors import ConfigError
from zerokit.patches import Patch, wrap
from zerokit.rehearsal.job import Overrides
from zerokit.rehearsal.watching.watcher import Watcher

_READ_CONFIG = Patch("deepspeed.runtime.config:DeepSpeedConfig", "__init__", "change and keep the ds_config")
# Here accelerate and transformers read it, to decide on ZeRO-3.
_READ_EARLY = Patch("accelerate.utils.deepspeed:HfDeepSpeedConfig", "__init__", "change the ds_config")
_OF_KEYS = ("unknown-key", "misplaced-key", "removed-key")
_TRAINING_ARGUMENTS = "transformers.training_args:TrainingArguments"
_ARGUMENTS = Patch(_TRAINING_ARGUMENTS, "__post_init__", "make changes, and keep output_dir as it is")


class _Changed(dict[str, Any]):
    """A ds_config with the changes, also as a deep copy; programs may fill its "auto" later."""


class Overriding(Watcher):
    """Makes the changes; `output_dir` replaces the folder of the script."""

    def __init__(self, overrides: Overrides, output_dir: Path) -> None:
        self._overrides = overrides
        self._changes = overrides.get("ds_config", {})
        self._output_dir = output_dir
        self.ds_config: dict[str, Any] | None = None
        """As DeepSpeed read it; None if it has not."""
        self.refused: dict[str, Any] | None = None
        """As it was when DeepSpeed refused it, in what JSON has; None if it did not."""
        self.data_parallel_ranks: int | None = None
        """By which DeepSpeed multiplied batch sizes, when it last read a config."""
        self.turns_16_bits_off = False
        """Whether the config, as written, says that there is no bf16 or fp16; an "auto" says nothing."""
        self._is_written = False
        """Whether that is known; later the config may be filled."""
        self.sizes_arguments = False
        """Whether the script has TrainingArguments of transformers, in which the micro-batch is changed."""

    def on_process_start(self) -> None:
        wrap(_READ_CONFIG, self._read_config)
        wrap(_ARGUMENTS, self._finish_arguments)
        wrap(_READ_EARLY, self._read_early)

    def on_engine_begin(self, model: Any) -> None:
        checkpoints = self._overrides.get("gradient_checkpointing")
        if checkpoints is not None and hasattr(model, "gradient_checkpointing_enable"):
            model.gradient_checkpointing_enable() if checkpoints else model.gradient_checkpointing_disable()

    def _read_config(self, initialize: Any, config: Any, source: Any, *arguments: Any, **given: Any) -> None:
        source = self._changed(source)
        try:
            initialize(config, source, *arguments, **given)
        except Exception:  # the caller reports it
            self.refused = _of_json(getattr(config, "_param_dict", None))
            raise
        finally:
            self.data_parallel_ranks = int(getattr(config, "world_size", 0)) or None
        self.ds_config = dict(config._param_dict)
        self._keep_written(source if isinstance(source, Mapping) else self.ds_config)

    def _read_early(self, initialize: Any, config: Any, source: Any, *arguments: Any, **given: Any) -> None:
        initialize(config, self._changed(source), *arguments, **given)
        self._keep_written(config.config)  # before transformers fills it

    def _changed(self, source: Any) -> Any:
        """`source` with the changes, made once: again, they would undo what transformers has filled."""
        if not self._changes or isinstance(source, _Changed):
            return source
        return _Changed(merged(_as_dict(source), self._changes))

    def _keep_written(self, config: Mapping[str, Any]) -> None:
        sections = [config.get(name) for name in ("bf16", "bfloat16", "fp16")]
        enabled = [one.get("enabled") for one in sections if isinstance(one, Mapping)]
        if not self._is_written:
            self._is_written = True
            self.turns_16_bits_off = any(one is False for one in enabled) and "auto" not in enabled

    def _finish_arguments(self, finish: Any, arguments: Any) -> None:
        # Losses that are made up must not mix with those of a real run.
        arguments.output_dir = str(self._output_dir)
        self.sizes_arguments = True
        if self._changes.get("bf16.enabled"):
            arguments.bf16 = True
        factor = self._overrides.get("micro_batch_factor", 1)
        size, accumulated = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
        arguments.per_device_train_batch_size = max(int(size * factor), 1)
        arguments.gradient_accumulation_steps = max(int(accumulated / factor), 1)
        checkpoints = self._overrides.get("gradient_checkpointing")
        if checkpoints is not None:
            arguments.gradient_checkpointing = checkpoints
            if hasattr(arguments, "activation_checkpointing"):  # its name since transformers 5.23
                arguments.activation_checkpointing = checkpoints
        finish(arguments)


def _of_json(config: Any) -> dict[str, Any] | None:
    """A copy, in which words stand for objects of Python; None of what is no config."""
    try:
        copy = json.loads(json.dumps(config, default=str))
    except (TypeError, ValueError):  # keys that are objects, and circles
        return None
    return copy if isinstance(copy, dict) else None


def _as_dict(source: Any) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source)
    return dict(read_ds_config(source).data)


def check_overrides(changes: Mapping[str, Any]) -> None:
    """Refuse a key that no ds_config has, and a value that it cannot have.

    Raises:
        ConfigError: there is one; it names the nearest key.
    """
    set_values = {name: value for name, value in changes.items() if value is not None}
    paths = list(map(split_dotted, set_values))
    document = Document(merged({}, set_values), "")
    for finding in check_ds_config(document):
        of_key = [path for path in paths if path[: len(finding.path)] == finding.path]
        is_of_value = finding.rule in ("wrong-type", "bad-value") and finding.path in of_key
        # What an optimizer takes depends on its type, which the config may contain.
        is_of_a_kind = finding.path[1:2] == ("params",) and f"{finding.path[0]}.type" not in changes
        if of_key and (is_of_value or (finding.rule in _OF_KEYS and not is_of_a_kind)):
            where = f"--ds-config-override {dotted(finding.path)}"
            raise ConfigError(finding.message, where=where, hint=finding.hint)


def merged(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the dotted keys of `changes` set; a value of None removes the key."""
    result: dict[str, Any] = plain(config)
    for name, value in changes.items():
        path = split_dotted(name)
        if value is not None:
            result = with_value(result, path, value, replace=True)
        elif has_value(result, path):
            result = without(result, path)
    return result
