"""What the Trainer and accelerate bring to a ds_config: their arguments, as far as it has a key for them.

Defaults are those of transformers 5.23 (`TrainingArguments`) and accelerate 1.15 (`Accelerator`,
`DummyOptim`, `DummyScheduler`); a test compares them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerokit.choices import Target
from zerokit.errors import ConfigError, did_you_mean
from zerokit.tables import table_of

DEFAULTS: Mapping[Target, Mapping[str, Any]] = table_of(__file__)
"""Arguments of each target that a ds_config has a key for, with their defaults. accelerate's are those of the
data loader, `Accelerator`, `DummyOptim` and `DummyScheduler`, in this order."""
TRAINER_DEFAULTS = DEFAULTS["trainer"]


def check_arguments(target: Target, given: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Check given arguments of the target, which may have any names and values.

    Raises:
        ConfigError: the target has no such argument, or none with such a value, from which a key follows.
    """
    known = DEFAULTS[target]
    for name, value in given.items():
        if name not in known:
            message = f"no key of a ds_config follows from '{name}' under the target {target}"
            hint = did_you_mean(name, known) if known else "Leave it out"
            raise ConfigError(message, where=where(name), hint=hint)
        if name == "mixed_precision" and value not in ("no", "fp16", "bf16"):
            raise ConfigError(f"'{value}' is no precision", where=where(name), hint="Write bf16 or fp16")
        default = known[name]
        if isinstance(default, str) or value is default:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool) != isinstance(default, bool):
            expected = "true or false" if isinstance(default, bool) else "a number"
            raise ConfigError(f"{value!r} is not {expected}", where=where(name), hint=f"Give {expected}")


@dataclass(frozen=True)
class Arguments:
    """The arguments of a run, with their defaults and where they were set."""

    target: Target
    given: Mapping[str, Any] = field(default_factory=dict)
    where: Callable[[str], str] = "{}".format
    """Names the place of an argument that was given."""

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name, DEFAULTS[self.target][name])

    def origin(self, *names: str) -> str:
        """Where the values of `names` come from, in words."""
        return " and ".join(self.where(name) if name in self.given else f"the default of {name}" for name in names)

    @property
    def mixed_precision(self) -> str:
        """accelerate's mixed precision: ``no``, ``fp16`` or ``bf16`` (`TrainingArguments.__post_init__`)."""
        if self.target == "accelerate":
            return str(self["mixed_precision"])
        return "fp16" if self["fp16"] else "bf16" if self["bf16"] else "no"

    def num_training_steps(self) -> int | None:
        """Optimizer steps of a Trainer's run, or None where the data decide."""
        steps: int = self["max_steps"]
        return steps if steps > 0 else None

    def warmup_steps(self) -> int | None:
        """As `TrainingArguments.get_warmup_steps`, at least 1, or None where the data decide."""
        warmup, total = self["warmup_steps"], self.num_training_steps()
        if warmup >= 1:
            return int(warmup)
        if warmup == 0:
            return 1
        return None if total is None else max(1, math.ceil(total * warmup))
