"""``zerokit generate`` on every rank: read, check, load, generate, write."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zerokit import console
from zerokit.checkpoint.adapter_names import ADAPTER_CONFIG
from zerokit.checkpoint.source import weight_files
from zerokit.config import load_ds_config
from zerokit.data.content import digest_of, sampled_digest
from zerokit.data.files import find_files
from zerokit.distributed.cores import share_threads
from zerokit.distributed.extensions import compile_extensions
from zerokit.distributed.group import RankGroup, check_launch, run_on_all_ranks
from zerokit.distributed.libraries import set_up_libraries
from zerokit.distributed.run_policy import RunPolicy
from zerokit.distributed.shared_memory import release_shared_memory
from zerokit.documents import dotted, path_exists
from zerokit.errors import ConfigError, ZerokitError, collect_errors, printable, raise_together
from zerokit.extras import require
from zerokit.generation.model import ModelFiles, check_quickly, find_model, read_model
from zerokit.generation.options import Options
from zerokit.generation.output import (
    Completion,
    CompletionCutter,
    Results,
    check_output,
    claim_stdout,
    failed_record,
    is_finished,
    record,
)
from zerokit.generation.prompts import STDIN, Prompts, load_prompts, refuse_all, tokenize
from zerokit.generation.queues import BroadcastQueue, Collector, SharedQueue, send
from zerokit.generation.requests import Decoded, OwnRequests, Queue, Request, requests_of
from zerokit.generation.sampling import REFUSED, Sampling, parse_sampling, settle_sampling, try_sampling
from zerokit.units import format_rate, quantity

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from zerokit.generation.ds_config import Engine
    from zerokit.generation.engine import Generator


def main(options: Options, *, stuck_after: float) -> int:
    """Run on this rank; returns the exit code: 1 if a prompt failed.

    Only results (rank 0) go to stdout, the rest to stderr.
    """
    failed: list[int] = []
    with claim_stdout() as results:
        # A rehearsal makes weights up.
        stream: IO[str] = results if RunPolicy.current().has_values else io.StringIO()
        code = run_on_all_ranks(lambda group: failed.append(generate(group, options, stream)), stuck_after=stuck_after)
    return code or int(any(failed))


def generate(group: RankGroup, options: Options, stream: IO[str]) -> int:
    """Generate for all prompts; returns how many failed. ZerokitError on every rank for bad input."""
    group.together(lambda: require("train", where="zerokit generate"))
    if group.policy.uses_this_machine:
        share_threads(group.ranks)
    set_up_libraries(group.ranks)
    group.together(lambda: check_launch(group.ranks))
    is_main, is_node_main = group.ranks.is_main, group.ranks.is_node_main
    finished = group.from_main(lambda: has_finished(options))
    sampling = group.together(lambda: check_options(options, output=is_main, inputs=is_node_main and not finished))
    if finished:
        if is_main:
            note_finished(options)
        return 0
    job = prepare(group, options, sampling, stream)
    if not job.requests:  # an earlier run has decoded them
        _run(group, job)
        return job.num_failed

    from zerokit.distributed.nvme import clear_weights, locked_swap_folders, uses_nvme

    zero = job.engine.ds_config["zero_optimization"]
    if job.engine.zero_stage == 3 or job.engine.mode == "tensor":
        compile_extensions(group, cpu_optimizer=None, async_io=uses_nvme(zero))
    where = "--mode" if options.ds_config is None else "--ds-config ({})"
    with locked_swap_folders(group, zero, lambda path: where.format(dotted(path))):
        try:
            _run(group, job)
        finally:
            if options.ds_config is None and group.policy.writes_files:  # else the folder is not this run's
                clear_weights(zero, group.ranks.rank)
        group.together(lambda: None)  # each machine's first rank holds the lock while others clear theirs
    return job.num_failed


def _run(group: RankGroup, job: Job) -> None:
    """Load the model, generate, and write the results."""
    started = loaded = time.monotonic()
    writer = job.writer
    if job.requests:
        from zerokit.generation.engine import Generator

        trust = job.options.trust_remote_code
        generator = Generator(job.model, job.engine, group.ranks, trust_remote_code=trust)
        release_shared_memory(group.ranks)
        loaded = time.monotonic()
        with writer or nullcontext():
            decode(group, job, generator, writer)
    group.together(lambda: None if writer is None else writer.finish())
    if writer is not None and group.ranks.is_main:
        seconds = time.monotonic() - loaded
        # A rehearsed rank has its own completions alone, and other ranks make as many.
        is_whole = group.policy.has_all_ranks or job.engine.mode == "tensor"
        num_tokens = writer.num_tokens * (1 if is_whole else group.ranks.world_size)
        work = (
            f", {quantity(num_tokens, 'token')}, "
            f"{num_tokens / seconds:.1f} tokens/s, mode {job.engine.mode}, {seconds:.1f} seconds "
            f"(after {loaded - started:.1f} to load the model)"
        )
        console.note(
            f"zerokit: {writer.summary()}"
            + (work if job.requests else "")
            + ("" if group.policy.has_values else ". Weights are made up: completions are not printed")
        )


@dataclass(frozen=True)
class Job:
    """Everything that a run needs, checked."""

    options: Options
    model: ModelFiles
    engine: Engine
    sampling: GenerationConfig
    requests: list[Request]
    """What is left to decode, the longest first; the same on all ranks."""
    num_failed: int
    """Prompts that cannot be used."""
    writer: Writer | None
    """On rank 0; in a rehearsal on each rank."""


def prepare(group: RankGroup, options: Options, given: Sampling, stream: IO[str]) -> Job:
    """Read and check all input. ZerokitError on every rank for bad input."""
    from zerokit.generation.ds_config import plan_engine
    from zerokit.generation.engine import find_device
    from zerokit.generation.mode import Work, choose_mode

    folder = group.node_main_first(lambda: find_model(options))

    def read() -> tuple[ModelFiles, Engine]:
        model = read_model(folder, options)
        engine = plan_engine(options.ds_config, requested_dtype=options.dtype, model=model, device=find_device())
        return model, engine

    model, engine = group.together(read)

    def settle() -> GenerationConfig:
        sampling = settle_sampling(given, model)
        try_sampling(given, sampling, model)
        return sampling

    sampling = group.together(settle)
    reads = group.ranks.is_main or not group.policy.has_all_ranks
    found = group.together(lambda: _read_input(options, model, engine, sampling, stream) if reads else None)
    writer, requests, num_failed = found or (None, [], 0)
    requests, num_failed = group.broadcast_object((requests, num_failed))
    if requests:
        engine = choose_mode(group, engine, model, options, Work.of(requests, sampling))
    return Job(options, model, engine, sampling, requests, num_failed, writer)


def _read_input(
    options: Options, model: ModelFiles, engine: Engine, sampling: GenerationConfig, stream: IO[str]
) -> tuple[Writer, list[Request], int]:
    """What writes results, what is left to decode, and the number of prompts that cannot be used."""
    prompts = load_prompts(options)
    most = options.max_prompt_tokens
    tokens = tokenize(prompts, model, max_prompt_tokens=most, max_new_tokens=sampling.max_new_tokens)
    refuse_all(prompts, options)
    files = [*weight_files(model.folder, where="--model")] if RunPolicy.current().reads_weights else []
    if model.adapter is not None:
        files += [model.adapter / ADAPTER_CONFIG, *weight_files(model.adapter, where="--model")]
    job: dict[str, Any] = {
        "--template": options.template,
        "prompts": digest_of([*map(str, prompts.values)]),
        "tokens of prompts": digest_of([*map(list, tokens)]),
        "model": sampled_digest([model.folder / "config.json", *files]),
        "--dtype": engine.dtype,
        "--seed": options.seed,
    }
    for name, value in sampling.to_diff_dict().items():
        if name not in REFUSED and name[0] != "_":
            job[f"--{name}"] = value
    # In a rehearsal each rank would lock the same file.
    output = options.output if RunPolicy.current().writes_files else None
    resume, force = options.resume, options.force
    results = Results(output, stream, job, num_prompts=len(tokens), resume=resume, force=force)
    requests = requests_of(tokens, sampling.num_return_sequences, done=results.places)
    return Writer(prompts, [*map(len, tokens)], results), requests, len(prompts.errors)


def decode(group: RankGroup, job: Job, generator: Generator, writer: Writer | None) -> None:
    """Decode all requests on all ranks; rank 0 receives and writes the completions meanwhile."""
    from zerokit.generation.decoding import Decoding

    cut = CompletionCutter(job.model.tokenizer, job.sampling)
    store = group.store()
    num_ranks = group.ranks.world_size if group.policy.has_all_ranks else 1
    is_divided = job.engine.mode == "tensor"  # all ranks decode the same requests
    shared = SharedQueue(job.requests, store, 1 if is_divided else num_ranks)
    queue: Queue = shared
    if is_divided:
        queue = BroadcastQueue(shared, group)
    elif not group.policy.has_all_ranks:
        queue = OwnRequests(group.share(job.requests))
    collector = None if writer is None else Collector(store, num_ranks, writer.receive, shared.stop)
    if collector is not None:
        collector.start()

    def done(decoded: Decoded) -> None:
        completions = [asdict(cut(tokens, decoded.prompt)) for tokens in decoded.completions]
        if not is_divided or collector is not None:
            send(store, {"index": decoded.index, "completions": completions})

    options, errors = job.options, list[ZerokitError]()
    batch_size = job.engine.batch_size or options.batch_size
    try:
        with group.work.step(in_lockstep=job.engine.is_synced), collect_errors(errors):
            generator.run(queue, done, Decoding(job.sampling, options.seed, batch_size, options.max_batch_tokens))
    finally:  # else the collector would wait for ever, in a process that goes on
        if errors:
            shared.stop()
        send(store, None)

    def end() -> None:
        if collector is not None:
            collector.finish()
        raise_together(errors)

    group.together(end)


class Writer:
    """Writes records, shows progress and counts, on rank 0."""

    def __init__(self, prompts: Prompts, num_prompt_tokens: Sequence[int], results: Results) -> None:
        self.num_tokens = 0
        self._prompts, self._num_prompt_tokens, self._results = prompts, num_prompt_tokens, results
        self._before = len(results.places)
        self._started = time.monotonic()
        self._progress = console.progress()
        count = len(prompts.values)
        self._bar = self._progress.add_task("prompts", total=count, completed=self._before, note="")

    def __enter__(self) -> None:
        self._started = time.monotonic()
        self._progress.start()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def receive(self, message: dict[str, Any]) -> None:
        """Write the completions of a prompt. ZerokitError if that fails."""
        index = message["index"]
        completions = [Completion(**fields) for fields in message["completions"]]
        prompt, num_tokens = self._prompts.values[index], self._num_prompt_tokens[index]
        self._results.add(record(index, prompt, num_tokens, completions))
        self.num_tokens += sum(completion.num_tokens for completion in completions)
        rate = self.num_tokens / (time.monotonic() - self._started)
        self._progress.update(self._bar, advance=1, note=format_rate(rate))

    def finish(self) -> None:
        """Write the records of prompts that cannot be used, and all in order. ZerokitError if that fails."""
        for index, error in self._prompts.errors.items():
            self._results.add(failed_record(index, self._prompts, error))
        self._results.finish()

    def summary(self) -> str:
        """How many prompts there were, done before, and failed."""
        parts = [(self._before, "done before"), (len(self._prompts.errors), "failed")]
        notes = ", ".join(f"{number} {what}" for number, what in parts if number)
        return quantity(len(self._prompts.values), "prompt") + (f" ({notes})" if notes else "")


def has_finished(options: Options) -> bool:
    """Whether the run to resume has written all its results."""
    return options.output is not None and options.resume and not options.force and is_finished(options.output)


def note_finished(options: Options) -> None:
    """Print that nothing is left to do."""
    output = printable(options.output or "")
    console.note(f"zerokit: {output} is finished: nothing to resume. --force generates again")


def _refuse_input(output: Path | None, inputs: Sequence[Path]) -> None:
    """Raise ConfigError if results would replace a file of prompts."""
    if output is None or not path_exists(output):
        return
    if any(path_exists(file) and output.samefile(file) for file in inputs):
        problem = "has the prompts, which results would replace"
        raise ConfigError(problem, where=output, hint="Name another file")


def check_options(options: Options, *, output: bool = True, inputs: bool = True) -> Sampling:
    """Check options and the files that they name; returns sampling options. Raises all errors together.

    Args:
        options: of the command.
        output: whether to check the output file and the prompts.
        inputs: whether to check other files to read.
    """
    require("train", where="zerokit generate")
    errors: list[ZerokitError] = []
    given = None
    with collect_errors(errors):
        given = parse_sampling(options.sampling_words, options.own_names)
    if output:
        with collect_errors(errors):
            check_output(options.output, force=options.force, resume=options.resume)
    if output and not has_finished(options):
        with collect_errors(errors):
            prompts = options.prompts if options.prompts not in (None, STDIN) else ()
            _refuse_input(options.output, find_files(prompts, "--prompts", options.split))
    if inputs:
        with collect_errors(errors):
            check_quickly(options)
    if inputs and options.ds_config is not None:
        with collect_errors(errors):
            load_ds_config(options.ds_config)
    raise_together(errors)
    assert given is not None
    return given
