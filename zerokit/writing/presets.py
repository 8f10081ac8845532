"""Presets of `zerokit config`: a name for each usual set of decisions, from the most memory to the least.

The files in ``ds_configs/`` are what they make, for the Trainer and, in ``plain/``, for DeepSpeed alone.
"""

from collections.abc import Mapping
from typing import Any

from zerokit.errors import ConfigError, did_you_mean
from zerokit.tables import table_of

PRESETS: Mapping[str, Mapping[str, Any]] = table_of(__file__)
"""Name -> fields of :class:`zerokit.writing.request.Decisions`."""


def with_preset(name: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The decisions of a preset, with those that were given in place of its own.

    Args:
        given: fields of Decisions; None, or False for a switch, means that it was not given.

    Raises:
        ConfigError: there is no preset of that name, or neither a preset nor a stage.
    """
    chosen = {key: value for key, value in given.items() if value is not None and value is not False}
    if name is not None:
        if name not in PRESETS:
            raise ConfigError(f"there is no preset '{name}'", where="--preset", hint=did_you_mean(name, PRESETS))
        chosen = {**PRESETS[name], **chosen}
    if "zero_stage" not in chosen:
        raise ConfigError(
            "nothing says what ZeRO divides",
            where="--zero-stage",
            hint="Give a stage, 0 to 3; or --model, --num-gpus and --gpu, for which zerokit chooses; or a "
            f"--preset: {', '.join(PRESETS)}",
        )
    return chosen
