"""The options of ``zerokit generate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from zerokit.errors import ConfigError

Dtype = Literal["auto", "bfloat16", "float16", "float32"]
Mode = Literal["auto", "replicated", "sharded"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options with their defaults. ConfigError for contradicting or missing prompts and modes."""

    model: str
    """A folder or a Hub id."""
    prompts: str | None = None
    """A file, a pattern of names, a folder of files or a Hub data set; None if `texts` are given."""
    texts: tuple[str, ...] = ()
    """Prompts written on the command line."""
    output: Path | None = None
    """The JSON lines file to write; None for stdout."""
    subset: str | None = None
    split: str | None = None
    """Split of a folder or a Hub data set; None: all files of a folder, "train" of the Hub."""
    batch_size: int = 8
    """Prompts per rank and `generate` call, at most."""
    mode: Mode = "auto"
    """``replicated``: each rank holds all weights. ``sharded``: ZeRO-3 divides them. ``auto``: by memory."""
    ds_config: Path | None = None
    max_prompt_tokens: int | None = None
    trust_remote_code: bool = False
    revision: str | None = None
    dtype: Dtype = "auto"
    seed: int = 0
    force: bool = False
    sampling_words: tuple[str, ...] = ()
    """The words that are not options of the command; :mod:`zerokit.generation.sampling` reads them."""
    own_names: tuple[str, ...] = field(default=(), compare=False)
    """The command's options, for hints about misspelled words."""

    def __post_init__(self) -> None:
        if self.prompts is None and not self.texts:
            raise ConfigError(
                "no prompts are given", where="--prompts", hint="Add --prompts FILE or --prompt TEXT"
            )
        if self.prompts is not None and self.texts:
            raise ConfigError("--prompt is given too", where="--prompts", hint="Give one of the two")
        if self.ds_config is not None and self.mode != "auto":
            raise ConfigError(
                "--ds-config is given too, whose stage is the mode",
                where="--mode",
                hint="Give one of the two",
            )
