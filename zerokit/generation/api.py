"""`zerokit.generate`: completions in Python, also in the middle of training."""

from __future__ import annotations

import functools
import io
import json
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from zerokit.checkpoint.pretrained import read_tokenizer
from zerokit.data.content import digest_of
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.errors import ConfigError, did_you_mean
from zerokit.extras import require
from zerokit.generation.gathered import LIVE_MODES, gathered, steps_with_others, unwrap
from zerokit.generation.main import generate as run
from zerokit.generation.mode import Work
from zerokit.generation.model import ModelFiles
from zerokit.generation.options import Mode, Options
from zerokit.generation.output import Completion, CompletionCutter, failed_record, record
from zerokit.generation.prompts import Prompt, load_prompts, tokenize
from zerokit.generation.requests import Decoded, OwnRequests, Request, requests_of
from zerokit.generation.sampling import DEFAULT_MAX_NEW_TOKENS, Sampling, parse_sampling, settle_sampling, try_sampling


@dataclass(frozen=True)
class Record:
    """A prompt with its completions."""

    index: int
    """Place in the list of prompts."""
    prompt: Prompt
    completions: tuple[Completion, ...]
    num_prompt_tokens: int = 0
    error: str | None = None
    """Why the prompt cannot be used; it has no completions then."""

    @property
    def text(self) -> str:
        """The first completion; empty without one."""
        return self.completions[0].text if self.completions else ""

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Record:
        """The record of a line of ``zerokit generate``."""
        parts = line.get("completions", [] if "error" in line else [line])
        made = (Completion(each["completion"], each["num_completion_tokens"], each["finish_reason"]) for each in parts)
        prompt = line["prompt"] if "prompt" in line else line["messages"]
        return cls(line["index"], prompt, tuple(made), line.get("num_prompt_tokens", 0), line.get("error"))


def generate(
    model: Any,
    prompts: Sequence[Prompt],
    *,
    tokenizer: Any = None,
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
    num_return_sequences: int = 1,
    seed: int = 0,
    batch_size: int = 8,
    mode: Mode = "auto",
    **options: Any,
) -> list[Record]:
    """Complete prompts; in a run of several ranks, every rank passes the same and gets all results.

    In training, call it between steps: the run continues bit for bit as if it had not been called.

    Args:
        model: a folder or Hub id, a transformers model, or an engine: DeepSpeed's, at any ZeRO stage, or what
            accelerate has prepared.
        prompts: texts, or chats as lists of messages.
        tokenizer: of a model that is loaded; by default from the folder that it was loaded from.
        max_new_tokens: most tokens of a completion.
        num_return_sequences: completions of each prompt.
        seed: of sampling.
        batch_size: completions that a rank decodes at a time, at most.
        mode: of a model that is loaded: ``gathered``: each rank has whole weights meanwhile; ``sharded``: ZeRO-3
            keeps them partitioned, which is many times slower; ``auto``: by free memory. Of a folder or Hub id as
            in ``zerokit generate``.
        options: of transformers' ``GenerationConfig``.

    Returns:
        A record of each prompt, in their order.

    Raises:
        ZerokitError: an option or the model cannot be used. An unusable prompt has its error in its record.
        RankError: another rank has failed.
    """
    require("train", where="zerokit.generate")
    if not (texts := _texts(prompts)):
        return []
    options |= {"max_new_tokens": max_new_tokens, "num_return_sequences": num_return_sequences}
    batch_size, seed = _whole("batch_size", batch_size), _whole("seed", seed)
    if batch_size < 1:
        raise ConfigError("is smaller than 1", where="batch_size", hint="Raise it")
    try:
        words = tuple(f"--{name}={_yaml(value)}" for name, value in options.items() if value is not None)
    except (TypeError, ValueError) as error:
        hint = "Use numbers, texts, lists and mappings of names"
        raise ConfigError(f"an option cannot be used: {error}", where="options", hint=hint) from error
    given: dict[str, Any] = {"texts": texts, "seed": seed, "batch_size": batch_size, "mode": mode}
    group, is_loaded = _open_group(), not isinstance(model, str | Path)
    if mode not in (modes := LIVE_MODES if is_loaded else get_args(Mode)):
        raise ConfigError(f"not possible here: '{mode}'", where="mode", hint=did_you_mean(mode, modes))
    if not is_loaded and tokenizer is not None:
        raise ConfigError("is for a model that is loaded", where="tokenizer", hint="Save it in the model's folder")
    if is_loaded:
        found = complete(group, model, Options(model="", sampling_words=words, **given), tokenizer)
    else:
        with io.StringIO() as lines:
            run(group, Options(model=str(model), sampling_words=words, **given), lines)
            found = [json.loads(line) for line in group.broadcast_object(lines.getvalue()).splitlines()]
    return [Record.of(line) for line in found]


def _texts(prompts: Any) -> tuple[Any, ...]:
    """A list of prompts, or a column of them by NumPy or pandas. ConfigError if it is something else."""
    is_one = isinstance(prompts, str | bytes)
    if is_one or isinstance(prompts, Mapping) or hasattr(prompts, "columns") or not isinstance(prompts, Iterable):
        what = "one text" if is_one else f"of type {type(prompts).__name__}"
        hint = "Write it in brackets" if is_one else "Pass a list of texts or chats"
        raise ConfigError(f"is {what}, not a list of prompts", where="prompts", hint=hint)
    return tuple(prompt.tolist() if hasattr(prompt, "tolist") else prompt for prompt in prompts)


def _whole(where: str, number: Any) -> int:
    """A whole number, as Python has it."""
    try:
        return operator.index(number)
    except TypeError:
        problem = f"expected a whole number, found {number!r}"
        raise ConfigError(problem, where=where, hint="Change the value") from None


def _number(value: Any) -> Any:
    """A number of NumPy as Python has it. TypeError if it is something else."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"a value of type {type(value).__name__}")
    return value.tolist()


def _yaml(value: Any) -> str:
    """The value as YAML. JSON's escapes beyond 16 bits are two, which YAML reads as two characters."""
    text = json.dumps(value, ensure_ascii=False, default=_number)
    return re.sub(r"[^ -~]", lambda match: f"\\U{ord(match[0]):08x}", text)


def complete(group: RankGroup, engine: Any, options: Options, tokenizer: Any) -> list[dict[str, Any]]:
    """The lines of ``zerokit generate``, of a model that is loaded.

    Args:
        options: prompts, sampling, seed, batch size and mode.
    """
    model = unwrap(engine)
    files = group.together(lambda: _files_of(model, tokenizer))
    asked = digest_of([*map(str, options.texts), *options.sampling_words, str(options.seed)])
    if len({*filter(None, group.gather_objects(asked))}) > 1:  # a rehearsal has not all ranks
        raise ConfigError("ranks differ", where="prompts or options", hint="Pass the same on every rank")
    given = parse_sampling(options.sampling_words)
    config = settle_sampling(given, files)
    try_sampling(given, config, files)
    prompts = group.together(lambda: load_prompts(options))
    tokens = tokenize(prompts, files, max_prompt_tokens=None, max_new_tokens=config.max_new_tokens)
    every = requests_of(tokens, config.num_return_sequences)
    requests, work = group.share(every), Work.of(every, config) if every else None
    if work is not None:  # of one batch
        most = work.beams * options.batch_size
        work = replace(work, sequences=min(most, work.per_rank(group.ranks.world_size)))
    with gathered(engine, mode=options.mode, work=work):
        made = _decode(model, files, requests, config, seed=options.seed, batch_size=options.batch_size)
    lines = [failed_record(index, prompts, error) for index, error in prompts.errors.items()]
    for theirs in group.gather_objects(made):
        for index, completions in (theirs or {}).items():  # a rehearsal has not all ranks
            lines.append(record(index, prompts.values[index], len(tokens[index]), completions))
    return sorted(lines, key=lambda line: line["index"])


def complete_tokens(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[str]:
    """The greedy completions of this rank's prompts, by a model in eval mode. Every rank must call it."""
    files = _files_of(model, tokenizer)
    config = settle_sampling(Sampling({"max_new_tokens": max_new_tokens, "do_sample": False}, {}), files)
    requests = [Request(index, tokens) for index, tokens in enumerate(prompts)]
    made = _decode(model, files, requests, config, batch_size=max(1, len(requests)))
    return [made[index][0].text for index in range(len(prompts))]


def _decode(
    model: Any, files: ModelFiles, requests: Sequence[Request], config: Any, *, seed: int = 0, batch_size: int
) -> dict[int, list[Completion]]:
    """The completions of this rank's requests."""
    from transformers import GenerationConfig

    from zerokit.generation.decoding import Decoder, Decoding, without_adapter

    cut = CompletionCutter(files.tokenizer, config)
    base = without_adapter(model)
    own, base.generation_config = base.generation_config, GenerationConfig()  # fills what `config` leaves open
    made: list[Decoded] = []
    try:
        device, synced = next(model.parameters()).device, steps_with_others(model)
        decoding = Decoding(config, seed, batch_size)
        decoder = Decoder(model, files.tokenizer, decoding, device=device, synced=synced)
        decoder.run(OwnRequests(requests), made.append)
    finally:
        base.generation_config = own
    return {each.index: [cut(tokens, each.prompt) for tokens in each.completions] for each in made}


@functools.cache
def _open_group() -> RankGroup:
    """The ranks of this process's run. A process that no launcher has started is alone."""
    return RankGroup(read_ranks({**os.environ}))


def _files_of(model: Any, tokenizer: Any) -> ModelFiles:
    from transformers import GenerationConfig

    if not hasattr(model, "generate"):
        raise ConfigError(
            f"a {type(model).__name__} generates no text", where="model", hint="Use a causal language model"
        )
    folder = Path(model.config.name_or_path or "")
    if tokenizer is None:
        if not folder.is_dir() or folder == Path():
            raise ConfigError("none is known for this model", where="tokenizer", hint="Pass tokenizer=...")
        tokenizer = read_tokenizer(folder, where="tokenizer", trust_remote_code=False)
    elif not hasattr(tokenizer, "apply_chat_template"):
        hint = "Load it: AutoTokenizer.from_pretrained(...)"
        raise ConfigError(f"a {type(tokenizer).__name__} is no tokenizer", where="tokenizer", hint=hint)
    defaults = getattr(model, "generation_config", None) or GenerationConfig.from_model_config(model.config)
    return ModelFiles(folder, model.config, defaults, tokenizer, None)
