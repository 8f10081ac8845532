"""The options of ``zerokit generate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zerokit.errors import ConfigError

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
_LARGEST = 2**31 - 1
"""The largest size of a batch: ranks count in 64 bits how many prompts they have taken."""
Mode = Literal["auto", "replicated", "gathered", "sharded", "tensor", "offloaded"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options with their defaults. ConfigError for contradicting or missing prompts and modes."""

    model: str
    """A folder or a Hub id."""
    prompts: str | None = None
    """A file, a pattern of names, a folder of files, a Hub data set, or ``-`` for stdin; None if `texts` are given."""
    texts: tuple[str, ...] = ()
    """Prompts written on the command line."""
    template: str | None = None
    """Text with ``{column}`` for the columns of a row, instead of a column of prompts."""
    output: Path | None = None
    """The JSON lines file to write; None for stdout."""
    subset: str | None = None
    split: str | None = None
    """Split of a folder or a Hub data set; None: all files of a folder, "train" of the Hub."""
    batch_size: int = 8
    """Completions that a rank decodes at a time, at most."""
    max_batch_tokens: int | None = None
    """Tokens of a batch, prompts and completions, at most, instead of `batch_size`."""
    mode: Mode = "auto"
    """``replicated``: each rank holds all weights. ``sharded``: ZeRO-3 divides them. ``auto``: by memory."""
    ds_config: Path | None = None
    max_prompt_tokens: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    dtype: Dtype = "auto"
    seed: int = 0
    force: bool = False
    resume: bool = False
    """Continue from the partial output of the same job."""
    sampling_words: tuple[str, ...] = ()
    """The words that are not options of the command; :mod:`zerokit.generation.sampling` reads them."""
    own_names: tuple[str, ...] = field(default=(), compare=False)
    """The command's options, for hints about misspelled words."""

    def __post_init__(self) -> None:
        if self.prompts is None and not self.texts:
            raise ConfigError("no prompts are given", where="--prompts", hint="Add --prompts FILE or --prompt TEXT")
        if self.prompts is not None and self.texts:
            raise ConfigError("--prompt is given too", where="--prompts", hint="Give one of the two")
        for name in ("batch_size", "max_batch_tokens"):
            if (getattr(self, name) or 0) > _LARGEST:
                where = f"--{name.replace('_', '-')}"
                raise ConfigError(f"is {getattr(self, name)}", where=where, hint=f"Give {_LARGEST} or less")
        if self.ds_config is not None and self.mode != "auto":
            raise ConfigError(
                "--ds-config is given too, whose stage is the mode", where="--mode", hint="Give one of the two"
            )
        if self.resume and self.output is None:
            raise ConfigError("continues a file, and none is named", where="--resume", hint="Add -o OUT.jsonl")
