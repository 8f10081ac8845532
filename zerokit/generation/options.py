"""The command line of ``launch/generate.py``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from zerokit.errors import ConfigError

DTYPES = ("auto", "bfloat16", "float16", "float32")

_EPILOG = """\
sampling options are the names of transformers' GenerationConfig, with underscores or hyphens:
  --max_new_tokens 64 --do_sample true --temperature 0.7 --top_p 0.9 --num_beams 4
  --num_return_sequences 3 --repetition_penalty 1.1 --stop_strings '["\\n", "###"]' ...
  Values are YAML. What is not given is the model's own (generation_config.json); max_new_tokens is 64
  unless either says otherwise. Completions end before a stop string.

each line of the output:
  {"index", "prompt" or "messages", "completion", "num_prompt_tokens", "num_completion_tokens",
   "finish_reason": "stop" or "length"}
  With num_return_sequences above 1, "completions" holds a list of {"completion",
  "num_completion_tokens", "finish_reason"} instead. The token that ends a completion is counted, but
  is not in its text.

Greedy decoding and beam search give the same completions on any number of ranks and for any batch size,
as far as rounding allows (float32). Samples depend on --seed, the number of ranks and --batch-size.

The deepspeed launcher writes lines of its own to stdout; `deepspeed --quiet`, or -o, keeps them apart.
"""


@dataclass(frozen=True)
class Options:
    """What to generate, from what, and where to."""

    model: str
    """A folder or a Hub id."""
    output: Path | None
    """The JSON lines file to write; None for stdout."""
    prompts: str | None
    """A file, a folder of files or a Hub data set; None if `texts` are given."""
    texts: tuple[str, ...]
    """Prompts written on the command line."""
    subset: str | None
    split: str
    batch_size: int
    """Prompts per rank and `generate` call, at most."""
    ds_config: Path | None
    max_prompt_tokens: int | None
    trust_remote_code: bool
    revision: str | None
    dtype: str
    """One of :data:`DTYPES`."""
    seed: int
    force: bool
    sampling_words: tuple[str, ...]
    """The words that are none of the options above; :mod:`zerokit.generation.sampling` reads them."""


OWN_NAMES = (
    *("--model", "--prompts", "--prompt", "--output", "--subset", "--split", "--batch-size"),
    *("--ds-config", "--max-prompt-tokens", "--trust-remote-code", "--revision", "--dtype", "--seed"),
    *("--force", "--help"),
)


def wants_help(words: Sequence[str]) -> bool:
    """Whether the command line asks for help, which is given whatever else it says."""
    return not {"-h", "--help"}.isdisjoint(words)


def help_text() -> str:
    """What ``--help`` prints."""
    return _parser().format_help()


def parse_options(words: Sequence[str]) -> Options:
    """Read the command line.

    Raises:
        ConfigError: an option has no value or a wrong one, a required one is missing, or two exclude
            each other.
    """
    found, rest = _parser().parse_known_args(list(words))
    if found.model is None:
        raise ConfigError("is missing", where="--model", hint="Name a model folder or a Hub id")
    texts = tuple(found.prompt or ())
    if found.prompts is None and not texts:
        raise ConfigError(
            "no prompts are given", where="--prompts", hint="Add --prompts FILE or --prompt TEXT"
        )
    if found.prompts is not None and texts:
        raise ConfigError("--prompt is given too", where="--prompts", hint="Give one of the two")
    return Options(
        model=found.model,
        output=found.output,
        prompts=found.prompts,
        texts=texts,
        subset=found.subset,
        split=found.split,
        batch_size=found.batch_size,
        ds_config=found.ds_config,
        max_prompt_tokens=found.max_prompt_tokens,
        trust_remote_code=found.trust_remote_code,
        revision=found.revision,
        dtype=found.dtype,
        seed=found.seed,
        force=found.force,
        sampling_words=tuple(rest),
    )


class _Parser(argparse.ArgumentParser):
    """Raises where argparse would print its usage, on every rank, and exit."""

    def error(self, message: str) -> NoReturn:
        named = re.fullmatch(r"argument ([^:]+): (.*)", message, re.DOTALL)
        where, problem = (named[1], named[2]) if named else ("command line", message)
        raise ConfigError(problem, where=where, hint="--help lists the options")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="generate.py",
        usage="deepspeed launch/generate.py --model MODEL (--prompts FILE | --prompt TEXT ...) [-o FILE]",
        description="Generate completions under DeepSpeed ZeRO-3, or another ds_config, on any number of\n"
        "ranks. Start it with deepspeed, torchrun, accelerate launch or python.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation of ours may be a whole name of GenerationConfig's
        add_help=False,
    )
    add = parser.add_argument
    add("--model", metavar="MODEL", help="model folder or Hub id")
    add(
        "--prompts",
        metavar="FILE",
        help="a .txt with a prompt a line; .jsonl, .json, .csv or .parquet with a column 'prompt', "
        "'messages' or 'text'; or a Hub data set",
    )
    add("--prompt", metavar="TEXT", nargs="+", action="extend", help="prompts themselves")
    add("--subset", help="configuration of a Hub data set")
    add("--split", default="train", help="split of a Hub data set (default: train)")
    add("-o", "--output", type=Path, metavar="OUT.jsonl", help="file to write (default: stdout)")
    add("--force", action="store_true", help="replace OUT.jsonl if it exists")
    add(
        "--batch-size", type=_positive, default=8, metavar="N", help="prompts per rank at a time (default: 8)"
    )
    add(
        "--ds-config",
        type=Path,
        metavar="FILE",
        help="ds_config of stage 3, also with parameter offload, or of stage 0: a full copy on every rank "
        "(default: stage 3). What only training reads in it is passed over",
    )
    add(
        "--max-prompt-tokens",
        type=_positive,
        metavar="N",
        help="cut longer prompts to their last N tokens (default: too long for the model is an error)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="number format of the weights (default: by the device)",
    )
    add(
        "--seed",
        type=_not_negative,
        default=0,
        metavar="N",
        help="for sampling; rank R uses N + R (default: 0)",
    )
    add("--revision", help="branch, tag or commit of a Hub model")
    add("--trust-remote-code", action="store_true", help="run Python code that comes with the model")
    add("-h", "--help", action="store_true", help="print this and leave")
    # DeepSpeed's launcher adds it; the environment says the same.
    add("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> int:
    return _whole(text, least=1)


def _not_negative(text: str) -> int:
    return _whole(text, least=0)


def _whole(text: str, *, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number") from None
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, not {value}")
    return value
