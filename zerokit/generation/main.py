"""``zerokit generate`` on every rank: read, check, load, generate, write."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING

from zerokit import console
from zerokit.checkpoint.source import check_before_launch
from zerokit.config import load_ds_config
from zerokit.data.files import find_files
from zerokit.distributed.cores import share_threads
from zerokit.distributed.group import RankGroup, check_launch, run_on_all_ranks
from zerokit.distributed.libraries import set_up_libraries
from zerokit.distributed.shared_memory import release_shared_memory
from zerokit.documents import dotted
from zerokit.errors import ZerokitError, collect_errors, raise_together
from zerokit.extras import require
from zerokit.generation.options import Options
from zerokit.generation.output import CompletionCutter, Results, check_output, claim_stdout, record
from zerokit.generation.sampling import Sampling, parse_sampling
from zerokit.units import quantity

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from zerokit.distributed.ranks import Ranks
    from zerokit.generation.ds_config import Engine
    from zerokit.generation.engine import Generator
    from zerokit.generation.model import ModelFiles
    from zerokit.generation.prompts import Prompt


def main(options: Options, *, stuck_after: float) -> int:
    """Run on this rank; returns the exit code. Only results (rank 0) go to stdout, the rest to stderr."""
    with claim_stdout() as results:
        return run_on_all_ranks(lambda group: generate(group, options, results), stuck_after=stuck_after)


def generate(group: RankGroup, options: Options, stream: IO[str]) -> None:
    """Generate for all prompts. ZerokitError on every rank for bad input."""
    group.together(lambda: require("train", where="zerokit generate"))
    if group.policy.uses_this_machine:
        share_threads(group.ranks)
    set_up_libraries(group.ranks)
    group.together(lambda: check_launch(group.ranks))
    job = prepare(group, options)

    from zerokit.distributed.extensions import compile_extensions
    from zerokit.distributed.nvme import locked_swap_folders

    if job.engine.zero_stage == 3:
        compile_extensions(group, cpu_optimizer=None)
    zero = job.engine.ds_config["zero_optimization"]
    with locked_swap_folders(group, zero, lambda path: f"--ds-config ({dotted(path)})"):
        _run(group, job, stream)


def _run(group: RankGroup, job: Job, stream: IO[str]) -> None:
    """Load the model, generate, and write the results."""
    from zerokit.generation.engine import Generator

    options = job.options
    started = time.monotonic()
    generator = Generator(job.model, job.engine, group.ranks, trust_remote_code=options.trust_remote_code)
    release_shared_memory(group.ranks)
    loaded = time.monotonic()
    results = Results(options.output, stream)
    num_tokens = run_rounds(group, job, generator, results)
    group.together(lambda: results.finish() if group.ranks.is_main else None)
    if group.ranks.is_main:
        seconds = time.monotonic() - loaded
        console.note(
            f"zerokit: {quantity(len(job.prompts), 'prompt')}, {quantity(num_tokens, 'token')}, "
            f"{num_tokens / seconds:.1f} tokens/s, {seconds:.1f} seconds "
            f"(after {loaded - started:.1f} to load the model)"
        )


@dataclass(frozen=True)
class Job:
    """Everything that a run needs, checked."""

    options: Options
    model: ModelFiles
    engine: Engine
    sampling: GenerationConfig
    prompts: list[Prompt]
    tokens: list[list[int]]
    """Tokens of each prompt."""


def prepare(group: RankGroup, options: Options) -> Job:
    """Read and check all input, quick checks first. ZerokitError on every rank for bad input."""
    from zerokit.generation.ds_config import plan_engine
    from zerokit.generation.engine import find_device
    from zerokit.generation.mode import choose_mode
    from zerokit.generation.model import find_model, read_model
    from zerokit.generation.prompts import digest_prompts, load_prompts, tokenize
    from zerokit.generation.sampling import settle_sampling, try_sampling

    given = group.together(lambda: check_options(options, group.ranks))
    folder = group.node_main_first(lambda: find_model(options))

    def read() -> tuple[ModelFiles, Engine]:
        model = read_model(folder, options)
        engine = plan_engine(
            options.ds_config, requested_dtype=options.dtype, model=model, device=find_device()
        )
        return model, engine

    model, engine = group.together(read)
    engine = choose_mode(group, engine, model, options)

    def settle() -> GenerationConfig:
        sampling = settle_sampling(given, model)
        try_sampling(given, sampling, model)
        return sampling

    sampling = group.together(settle)
    contents = group.from_node_main(lambda: digest_prompts(options), where="--prompts")
    prompts = group.node_main_first(lambda: load_prompts(options, contents))
    tokens = group.together(
        lambda: tokenize(
            prompts,
            model,
            max_prompt_tokens=options.max_prompt_tokens,
            max_new_tokens=sampling.max_new_tokens,
        )
    )
    return Job(options, model, engine, sampling, prompts, tokens)


def run_rounds(group: RankGroup, job: Job, generator: Generator, results: Results) -> int:
    """Generate round by round; rank 0 collects. Returns the number of tokens that all ranks generated."""
    import torch

    from zerokit.generation.engine import distribute
    from zerokit.generation.sampling import end_tokens

    rounds = distribute(
        [len(tokens) for tokens in job.tokens],
        batch_size=job.options.batch_size,
        world_size=group.ranks.world_size,
    )
    stops = job.sampling.stop_strings or []
    finish = CompletionCutter(
        job.model.tokenizer, end_tokens(job.sampling), [stops] if isinstance(stops, str) else stops
    )
    torch.manual_seed(job.options.seed + group.ranks.rank)
    num_tokens = 0
    progress = console.progress()
    progress.disable |= not group.ranks.is_main
    with progress:
        bar = progress.add_task("prompts", total=len(job.prompts), note="")
        for batches in rounds:
            batch = batches[group.ranks.rank]
            with group.work.step():
                made = generator.generate([job.tokens[index] for index in batch], job.sampling)
            mine = [
                (index, [finish(tokens) for tokens in sequences])
                for index, sequences in zip(batch, made, strict=True)
            ]
            everyones = [item for part in group.gather_objects(mine) for item in part]
            num_tokens += sum(done.num_tokens for _, completions in everyones for done in completions)
            records = [
                record(index, job.prompts[index], len(job.tokens[index]), completions)
                for index, completions in everyones
            ]
            group.together(partial(results.add, records) if group.ranks.is_main else lambda: None)
            progress.update(bar, advance=len(everyones), note=f"{num_tokens} tokens")
    return num_tokens


def check_options(options: Options, ranks: Ranks) -> Sampling:
    """Check options and the files that they name; returns sampling options. Raises all errors together."""
    errors: list[ZerokitError] = []
    given = None
    with collect_errors(errors):
        given = parse_sampling(options.sampling_words, options.own_names)
    _look_at_files(options, errors, output=ranks.is_main, inputs=ranks.is_node_main)
    raise_together(errors)
    assert given is not None
    return given


def check_before_start(options: Options) -> None:
    """As :func:`check_options`, in the process that starts the ranks.

    Sampling options are checked only if there is another error, because that imports transformers.
    """
    errors: list[ZerokitError] = []
    _look_at_files(options, errors, output=True, inputs=True)
    if errors:
        of_sampling: list[ZerokitError] = []
        with collect_errors(of_sampling):
            parse_sampling(options.sampling_words, options.own_names)
        raise_together(of_sampling + errors)


def _look_at_files(options: Options, errors: list[ZerokitError], *, output: bool, inputs: bool) -> None:
    """Add errors of the output file and of the files to read."""
    if output:
        with collect_errors(errors):
            check_output(options.output, force=options.force)
    if inputs:
        with collect_errors(errors):
            check_before_launch(options.model, where="--model", revision=options.revision)
        with collect_errors(errors):
            find_files(options.prompts or (), "--prompts", options.split)
        if options.ds_config is not None:
            with collect_errors(errors):
                load_ds_config(options.ds_config)
