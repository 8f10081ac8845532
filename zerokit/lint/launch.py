"""What the rules of the YAML of ``accelerate launch`` look at: the file, who runs it, the ds_config it
names."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zerokit.choices import Target
from zerokit.config.launch_file import deepspeed_section, is_local, named_ds_config
from zerokit.documents import KeyPath, value_at

_GPU_TYPES = ("DEEPSPEED", "FSDP", "MULTI_GPU", "MEGATRON_LM")
"""Values of `distributed_type` that start processes on GPUs, evenly on all machines
(`prepare_multi_gpu_env` in `accelerate/utils/launch.py`)."""


@dataclass(frozen=True)
class Launch:
    """A launch file. A rule is a pure function of it."""

    data: Mapping[str, Any]
    target: Target | None = None
    """None: the Trainer or a script with an Accelerator of its own."""
    finds_file: bool = True
    """Whether the ds_config that the file names is here."""
    ds_config: Mapping[str, Any] | None = None
    """Its content; None if there is none, or it cannot be read."""
    twin: str | None = None
    """Another launch file of the folder with the same content."""
    num_gpus: int | None = None
    """GPUs of the run, by `--num-gpus`; None: not given."""

    @cached_property
    def section(self) -> Mapping[str, Any]:
        """The keys of `deepspeed_config`; empty if DeepSpeed is not started."""
        return deepspeed_section(self.data)

    @property
    def starts_gpus(self) -> bool:
        """Whether accelerate starts processes on GPUs of this machine."""
        return is_local(self.data) and self.data.get("distributed_type") in _GPU_TYPES

    @property
    def fsdp_version(self) -> int | None:
        """1 or 2; None without FSDP."""
        section = self.data.get("fsdp_config")
        if self.data.get("distributed_type") != "FSDP" or not isinstance(section, Mapping):
            return None
        return 2 if str(section.get("fsdp_version")) == "2" else 1

    @property
    def names_file(self) -> bool:
        """Whether the ds_config is a file of its own."""
        return named_ds_config(self.section) is not None

    def option(self, key: str) -> Any:
        """The value of an option of ``accelerate launch``, which may also be in `deepspeed_config`."""
        return self.section.get(key, self.data.get(key))

    def in_ds_config(self, path: KeyPath) -> Any:
        """The value at `path` in the ds_config that the file names, or None."""
        return None if self.ds_config is None else value_at(self.ds_config, path)
