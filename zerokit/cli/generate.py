"""``zerokit generate``: generate, on this process or on every rank that a launcher starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from zerokit.cli.command import common_options, required_unless, with_options
from zerokit.cli.on_ranks import is_rank, start_ranks
from zerokit.cli.output import not_stdout
from zerokit.distributed.ranks import STUCK_AFTER
from zerokit.generation.options import Dtype, Mode, Options


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    """The command line of ``zerokit generate``."""

    context: typer.Context
    model: str
    prompts: str | None = None
    prompt: list[str] | None = None
    subset: str | None = Options.subset
    split: str | None = Options.split
    template: str | None = Options.template
    output: Path | None = Options.output
    force: bool = Options.force
    resume: bool = Options.resume
    batch_size: int = Options.batch_size
    max_batch_tokens: int | None = Options.max_batch_tokens
    mode: Mode = Options.mode
    ds_config: Path | None = Options.ds_config
    max_prompt_tokens: int | None = Options.max_prompt_tokens
    dtype: Dtype = Options.dtype
    seed: int = Options.seed
    revision: str | None = Options.revision
    trust_remote_code: bool = Options.trust_remote_code
    stuck_after: float = STUCK_AFTER
    num_gpus: int | None = None
    master_port: int | None = None
    local_rank: int | None = None


_prompts_required = required_unless(
    lambda given: given.get("prompt"), "option '--prompts'", "Give it, or write one with --prompt TEXT"
)


@with_options(GenerateOptions, "generate", prompts=_prompts_required, output=not_stdout)
def generate(options: GenerateOptions) -> None:
    """Generate completions on any number of ranks, with full copies of the model or under DeepSpeed ZeRO-3.

    All other options are names of transformers' GenerationConfig, with underscores or hyphens and with
    YAML values: --max_new_tokens 64 --do_sample true --temperature 0.7 --num_beams 4
    --num_return_sequences 3. Defaults come from the model's generation_config.json;
    max_new_tokens is 64 unless either sets it. Completions end before a stop string.

    Each line of the output has index, prompt or messages, completion, num_prompt_tokens,
    num_completion_tokens and finish_reason (stop, length or error); with num_return_sequences above 1, a
    list completions. The token that ends a completion is counted, but is not in its text. A prompt that
    cannot be used has the reason in error, and makes the exit code 1.

    Completions are the same on any number of ranks and for any batch size, as far as rounding allows
    (float32). Samples depend on --seed.

    DeepSpeed's launcher writes to stdout, too; -o, or deepspeed --log_level critical, keeps that apart.
    """
    context = options.context
    job = Options(
        **common_options(options, Options),
        texts=tuple(options.prompt or ()),
        sampling_words=tuple(context.args),
        own_names=tuple(name for parameter in context.command.params for name in parameter.opts),
    )
    # Before torch is imported, and the launcher prints much of its own. The ranks check together, in `main`.
    if not is_rank():
        from zerokit.generation.main import check_options, has_finished, note_finished

        finished = has_finished(job)
        check_options(job, inputs=not finished)
        if finished:
            note_finished(job)
            return
    again = "Start it again" + (" with --resume" if job.output is not None and not job.resume else "")
    start_ranks(options.num_gpus, options.master_port, "generate", context.obj, again=lambda: again)
    from zerokit.distributed.group import leave
    from zerokit.generation.main import main

    leave(main(job, stuck_after=options.stuck_after))
