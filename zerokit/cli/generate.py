"""``zerokit generate``: generate, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from zerokit.cli.command import common_options, required_unless, with_options
from zerokit.cli.on_ranks import LocalRank, MasterPort, NumGpus, StuckAfter, is_rank, start_ranks
from zerokit.cli.output import not_stdout
from zerokit.distributed.ranks import STUCK_AFTER
from zerokit.generation.options import Dtype, Mode, Options


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The command line of ``zerokit generate``."""

    context: typer.Context
    model: Annotated[str, typer.Option(metavar="MODEL", help="Model folder or Hub id.")]
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A .txt with a prompt a line; .jsonl, .json, .csv, .tsv, .parquet or .arrow with a column "
            "'prompt', 'messages' or 'text'; a text also compressed (.gz, .bz2, .xz, .zst); a pattern of "
            "their names, or a folder of them; or a Hub data set.",
            callback=required_unless(
                lambda given: given.get("prompt"),
                "option '--prompts'",
                "Give it, or write one with --prompt TEXT",
            ),
        ),
    ] = None
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="A prompt itself; may be repeated.")
    ] = None
    subset: Annotated[str | None, typer.Option(help="Configuration of a Hub data set.")] = Options.subset
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of a Hub data set, or of a folder whose files name theirs.",
            show_default="train of the Hub, all files of a folder",
        ),
    ] = Options.split
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT.jsonl",
            help="File to write.",
            show_default="standard output",
            callback=not_stdout,
        ),
    ] = Options.output
    force: Annotated[bool, typer.Option("--force", help="Replace OUT.jsonl if it exists.")] = Options.force
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts per rank at a time.")] = (
        Options.batch_size
    )
    mode: Annotated[
        Mode,
        typer.Option(
            help="replicated: each rank holds all weights, which is fastest. sharded: ZeRO-3 divides the "
            "weights among the ranks. auto: replicated if the weights take at most half of the free memory."
        ),
    ] = Options.mode
    ds_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="ds_config of stage 3, also with parameter offload, or of stage 0: a full copy on every "
            "rank. Keys that only training reads are ignored.",
            show_default="by --mode",
        ),
    ] = Options.ds_config
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Cut longer prompts to their last N tokens.",
            show_default="too long for the model is an error",
        ),
    ] = Options.max_prompt_tokens
    dtype: Annotated[Dtype, typer.Option(help="Number format of the weights; auto goes by the device.")] = (
        Options.dtype
    )
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="For sampling; rank R uses N + R.")] = (
        Options.seed
    )
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")] = (
        Options.revision
    )
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = Options.trust_remote_code
    stuck_after: StuckAfter = STUCK_AFTER
    num_gpus: NumGpus = None
    master_port: MasterPort = None
    local_rank: LocalRank = None


@with_options(GenerateOptions)
def generate(options: GenerateOptions) -> None:
    """Generate completions on any number of ranks, with full copies of the model or under DeepSpeed ZeRO-3.

    All other options are names of transformers' GenerationConfig, with underscores or hyphens and with
    YAML values: --max_new_tokens 64 --do_sample true --temperature 0.7 --num_beams 4
    --num_return_sequences 3. Defaults come from the model's generation_config.json;
    max_new_tokens is 64 unless either sets it. Completions end before a stop string.

    Each line of the output has index, prompt or messages, completion, num_prompt_tokens,
    num_completion_tokens and finish_reason (stop or length); with num_return_sequences above 1, a list
    completions. The token that ends a completion is counted, but is not in its text.

    Greedy decoding and beam search give the same completions on any number of ranks and for any batch
    size, as far as rounding allows (float32). Samples depend on --seed, the number of ranks and
    --batch-size.

    DeepSpeed's launcher writes lines of its own to stdout; -o, or deepspeed --quiet, keeps them apart.
    """
    context = options.context
    job = Options(
        **common_options(options, Options),
        texts=tuple(options.prompt or ()),
        sampling_words=tuple(context.args),
        own_names=tuple(name for parameter in context.command.params for name in parameter.opts),
    )
    # Before the launcher, which prints much of its own. The ranks check together, in `main`.
    if options.num_gpus is not None and not is_rank():
        from zerokit.generation.main import check_before_start

        check_before_start(job)
    start_ranks(options.num_gpus, options.master_port, "generate", context.obj, again="Start it again")
    from zerokit.distributed.group import leave
    from zerokit.generation.main import main

    leave(main(job, stuck_after=options.stuck_after))
