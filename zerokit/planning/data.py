"""The workload of a plan: from files, a recipe, or numbers that the user gives."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from zerokit.data.files import find_files
from zerokit.data.sources import no_examples, read_examples
from zerokit.errors import ConfigError, DataError
from zerokit.hardware import GPUS_PER_NODE
from zerokit.hub import cached_repository
from zerokit.planning.workload import Workload, check_in_range
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import DataSection, TaskSection
from zerokit.training.formats import detect_format
from zerokit.training.packing import best_fit
from zerokit.units import format_count

if TYPE_CHECKING:
    from zerokit.models import ModelShape

DEFAULT_GLOBAL_BATCH_SIZE = 128
_SEQ_LEN = 2048
_MOST_EXAMPLES = 2000
_MOST_CHARACTERS = 8 << 20
"""Of the examples that are tokenized: some seconds."""
_BYTES_PER_TOKEN = 4
"""UTF-8 of English text, in vocabularies of 32,000 to 150,000 tokens."""
_USUAL_SPREAD = 0.8
"""Sigma of the log-normal distribution where only the mean is known: 95% are below 2.7 times the mean."""
_PARTS = 64
"""Lengths of such a distribution."""
_TASKS = ("causal_lm", "seq2seq")


def workload_of(
    model: ModelShape,
    *,
    model_name: str | None = None,
    data: Sequence[str] = (),
    recipe: LoadedRecipe | None = None,
    tokens: int | None = None,
    num_examples: int | None = None,
    mean_tokens: float | None = None,
    p95_tokens: float | None = None,
    seq_len: int | None = None,
    global_batch_size: int | None = None,
    epochs: float | None = None,
) -> Workload:
    """Count what is trained on. Arguments win over the recipe, numbers over files.

    Args:
        model_name: a folder, or a Hub id in the cache, whose tokenizer.json counts the tokens.
        data: files as `zerokit train` reads them.
        recipe: of `zerokit train`: data, task, epochs or max_steps, batch sizes.
        tokens: of one epoch, in packed sequences.
        num_examples: with `mean_tokens`, and `p95_tokens`, which 95% of the examples do not exceed.
        seq_len: of the longest sequence; None: the recipe's, else 2048 or the model's positions.
        global_batch_size: None: the recipe's batch on 8 GPUs, else 128.

    Raises:
        ConfigError: a number is missing or not positive, or a sequence is longer than the model allows.
        DataError: the data cannot be read, or are empty.
    """
    if not data and recipe is None and tokens is None and num_examples is None:
        hint = "Give --data FILE, --tokens, or --examples and --mean-tokens"
        raise ConfigError("there are no data to plan for", where="--data", hint=hint)
    for option, value in (
        ("--tokens", tokens),
        ("--examples", num_examples),
        ("--mean-tokens", mean_tokens),
        ("--epochs", epochs),
        ("--global-batch-size", global_batch_size),
    ):
        check_in_range(value, where=option)
    task = TaskSection(type="seq2seq" if model.is_encoder_decoder else "causal_lm")
    if recipe is not None:
        task = recipe.recipe.task
    seq_len, notes = _seq_len(model, seq_len, recipe)
    lengths: Mapping[int, int] | None = None
    packing, number = True, 0
    if tokens is not None:
        number = math.ceil(tokens / seq_len)
        packed = f"{format_count(tokens)} tokens are assumed to be packed into sequences of {seq_len:,}"
        notes.append(f"{packed}; --examples or --data changes it.")
    elif num_examples is not None:
        lengths, note = _log_normal(mean_tokens, p95_tokens, seq_len)
        number, packing = num_examples, False
        notes.append(note)
    else:
        task = task.model_copy(update={"seq_len": seq_len})
        files = DataSection(train=list(data)) if data or recipe is None else recipe.recipe.data
        where = "--data" if data or recipe is None else recipe.where("data", "train")
        name = recipe.recipe.model.path if model_name is None and recipe is not None else model_name
        number, lengths, packing = _counted(files, task, name, where, notes)
    padding_free = task.type == "causal_lm" and task.padding_free is not False
    if not packing:
        how = "share rows without padding" if padding_free else "are padded to the longest of a micro batch"
        option = "; task.padding_free of a recipe changes it" * (task.type == "causal_lm")
        notes.append(f"Examples {how}{option}.")
    training = recipe.recipe.training if recipe is not None else {}
    batch = global_batch_size or _batch_of(training, notes)
    return Workload(
        num_sequences=number,
        seq_len=seq_len,
        global_batch_size=batch,
        epochs=epochs or _epochs_of(training, batch / number),
        lengths=lengths,
        packing=packing,
        padding_free=padding_free,
        notes=tuple(notes),
    )


def _seq_len(model: ModelShape, seq_len: int | None, recipe: LoadedRecipe | None) -> tuple[int, list[str]]:
    most = model.max_position_embeddings
    where, notes = "--seq-len", []
    if seq_len is None and recipe is not None:
        seq_len, where = recipe.recipe.task.seq_len, recipe.where("task", "seq_len")
    if seq_len is None:
        seq_len = min(_SEQ_LEN, most or _SEQ_LEN)
        notes.append(f"Sequences have at most {seq_len:,} tokens; --seq-len changes it.")
    if most is not None and seq_len > most:
        message = f"{seq_len:,} tokens are more than the {most:,} positions of {model.name}"
        raise ConfigError(message, where=where, hint=f"Give {most} or less, or a model folder with more positions")
    return seq_len, notes


def _batch_of(training: Mapping[str, Any], notes: list[str]) -> int:
    sizes = [training.get(key) for key in ("per_device_train_batch_size", "gradient_accumulation_steps")]
    batch, why = DEFAULT_GLOBAL_BATCH_SIZE, ""
    if any(sizes) and all(isinstance(size, int | None) for size in sizes):
        batch = math.prod(size or 1 for size in sizes) * GPUS_PER_NODE
        why = f": the recipe's on {GPUS_PER_NODE} GPUs"
    notes.append(f"A step has {batch:,} sequences{why}; --global-batch-size changes it.")
    return batch


def _epochs_of(training: Mapping[str, Any], epochs_per_step: float) -> float:
    steps, epochs = training.get("max_steps", -1), training.get("num_train_epochs", 1)
    if isinstance(steps, int) and steps > 0:
        return steps * epochs_per_step
    return float(epochs) if isinstance(epochs, int | float) else 1.0


def _log_normal(mean: float | None, p95: float | None, seq_len: int) -> tuple[dict[int, int], str]:
    """Lengths of a log-normal distribution with a mean and a 95th percentile, and a note.

    With mean exp(mu + sigma^2/2) and quantile exp(mu + z sigma), z = 1.645:
    ln(p95/mean) = z sigma - sigma^2/2, of which the smaller root is taken. The lengths are the quantiles in
    the middle of equally likely parts, times the factor that gives them the mean.
    """
    if mean is None:
        raise ConfigError("their mean length is missing", where="--examples", hint="Add --mean-tokens M")
    z, sigma, guessed = NormalDist().inv_cdf(0.95), _USUAL_SPREAD, "; --p95-tokens changes it"
    if p95 is not None:
        most = mean * math.exp(z * z / 2)
        if not mean <= p95 <= most:
            message = f"{p95:g} is no 95th percentile of lengths with the mean {mean:g}"
            raise ConfigError(message, where="--p95-tokens", hint=f"Give {mean:g} to {most:.0f}")
        sigma, guessed = z - math.sqrt(z * z - 2 * math.log(p95 / mean)), ""
    middles = [(part + 0.5) / _PARTS for part in range(_PARTS)]
    quantiles = [math.exp(sigma * NormalDist().inv_cdf(middle)) for middle in middles]
    factor = mean * _PARTS / sum(quantiles)
    lengths = Counter(min(seq_len, max(1, round(factor * quantile))) for quantile in quantiles)
    p95 = mean * math.exp(z * sigma - sigma * sigma / 2)
    note = f"Lengths are assumed to be log-normal: mean {mean:g}, 95% up to {p95:,.0f}{guessed}."
    if longer := sum(factor * quantile > seq_len for quantile in quantiles):
        note += f" {longer / _PARTS:.0%} are longer than {seq_len:,} tokens, and are cut; --seq-len changes it."
    return dict(lengths), note


def _counted(
    section: DataSection, task: TaskSection, model: str | None, where: str, notes: list[str]
) -> tuple[int, dict[int, int], bool]:
    """Sequences of an epoch, the lengths of them or of a sample, and whether they are packed."""
    from zerokit.training.tasks import task_of

    if task.type not in _TASKS:
        hint = "Name the model in place of the recipe, with --examples and --mean-tokens"
        raise DataError(f"the lengths of {task.type} data cannot be counted", where=where, hint=hint)
    sources = [section.train] if isinstance(section.train, str) else section.train
    files = find_files(sources, where, section.train_split)
    if not files:
        hint = "Download it, or give --examples and --mean-tokens"
        raise DataError(f"'{sources[0]}' is no file on this machine", where=where, hint=hint)
    rows = (row for _, row in read_examples(files, where))
    number, sample = _sampled(islice(rows, section.max_examples))
    if not number or not any(sample):
        raise no_examples(sources, files, where)
    own = task_of(task)
    columns = list(dict.fromkeys(name for row in sample for name in row))
    format_ = detect_format(columns, section, own.formats, where=where)
    tokenizer = _Tokenizer(model)
    encoder = own.encoder(tokenizer, format_, section.columns)
    encoder.apart = True
    found: list[int] = []
    examples = unusable = cut = characters = 0
    for row in sample:
        if characters > _MOST_CHARACTERS:
            break
        examples += 1
        characters += sum(len(str(value)) for value in row.values())
        try:
            sequences = [each for each in encoder.sequences(dict.fromkeys(columns) | row) if each.has_targets]
        except DataError:
            unusable += 1
            continue
        found += [max(1, len(each.features["input_ids"])) for each in sequences]
        cut += any(each.is_cut for each in sequences)
    if not found:
        raise DataError("no example can be trained on", where=where, hint="See zerokit train --preview")
    part = f"{examples:,} of {number:,}" if examples < number else f"{number:,}"
    notes.append(
        f"{part} examples of {', '.join(sources)} counted with {tokenizer.words}: "
        f"{min(found):,} to {max(found):,} tokens, {sum(found) / len(found):,.0f} on average."
    )
    if cut:
        notes.append(f"{cut / examples:.1%} of them are longer than {task.seq_len:,} tokens, and are cut.")
    if unusable:
        notes.append(f"{unusable:,} of them cannot be trained on; zerokit train --preview says why.")
    is_packed = encoder.packed_len is not None
    if is_packed:
        found = [sum(found[index] for index in row) for row in best_fit(found, task.seq_len)]
        notes.append(f"Texts are packed into {task.seq_len:,} tokens; task.packing of a recipe changes it.")
    held_out = section.eval_fraction if section.eval is None and where != "--data" else 0.0
    total = round(len(found) * number / examples * (1 - held_out))
    return max(1, total), dict(Counter(found)), is_packed


def _sampled(rows: Iterator[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """How many rows there are, and at most 2,000 of them at random, always the same.

    Source: reservoir sampling, Vitter, "Random sampling with a reservoir" (1985), algorithm R.
    """
    chance = random.Random(0)  # noqa: S311
    sample: list[dict[str, Any]] = []
    number = 0
    for row in rows:
        number += 1
        if len(sample) < _MOST_EXAMPLES:
            sample.append(row)
        elif (place := chance.randrange(number)) < _MOST_EXAMPLES:
            sample[place] = row
    chance.shuffle(sample)  # a part of it is a sample, too
    return number, sample


class _Tokenizer:
    """Counts tokens as the tokenizer of transformers does, with `tokenizers` alone, or by bytes."""

    is_fast = True
    eos_token_id: int | None = None

    def __init__(self, model: str | None) -> None:
        self._core: Any = None
        self.chat_template: Any = _role_words
        self.words = f"one token per {_BYTES_PER_TOKEN} bytes, since the tokenizer's files are not here"
        if model is None or (folder := _folder_of(model)) is None:
            return
        try:
            from tokenizers import Tokenizer

            core = Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = folder / "tokenizer_config.json"
            settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
            self.chat_template = _template(folder, settings) or _role_words
        except Exception as error:  # tokenizers raises no narrower class
            why = f"those of {folder} cannot be used ({error or type(error).__name__})"
            self.words = f"one token per {_BYTES_PER_TOKEN} bytes, since {why}"
            return
        core.no_truncation()
        core.no_padding()
        self._core, self.words = core, "the model's tokenizer"
        eos = _token(settings.get("eos_token"))
        self.eos_token_id = core.token_to_id(eos) if isinstance(eos, str) else None

    def __call__(
        self, text: str = "", *, text_target: str | None = None, add_special_tokens: bool = True, **options: Any
    ) -> dict[str, Any]:
        text = text if text_target is None else text_target
        most = options.get("max_length")
        if self._core is None:
            count = -(-len(text.encode(errors="replace")) // _BYTES_PER_TOKEN)
            return {"input_ids": [0] * count if most is None else [0] * min(count, most)}
        encoding = self._core.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids[:most], "offset_mapping": encoding.offsets}

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        """The text of a chat."""
        prompt = bool(options.get("add_generation_prompt"))
        return str(self.chat_template(messages=messages, add_generation_prompt=prompt))


def _folder_of(model: str) -> Path | None:
    """The folder with the tokenizer.json of a model that is on this machine."""
    snapshots = cached_repository(model) / "snapshots"
    folders = [Path(model), *(sorted(snapshots.iterdir()) if snapshots.is_dir() else [])]
    return next((folder for folder in folders if (folder / "tokenizer.json").is_file()), None)


def _template(folder: Path, settings: Mapping[str, Any]) -> Any:
    """The function that renders the model's chats; None without a template that works, or without jinja2."""
    file = folder / "chat_template.jinja"
    text = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    if isinstance(text, list):  # named templates
        text = next((one.get("template") for one in text if one.get("name") == "default"), None)
    if not isinstance(text, str) or find_spec("jinja2") is None:
        return None
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # As transformers does: utils/chat_template_utils.py, _compile_jinja_template.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals["strftime_now"] = lambda _: "1 January 2026"
    environment.globals |= {key: _token(value) for key, value in settings.items() if key.endswith("_token")}
    with suppress(TemplateError):
        return environment.from_string(text).render
    return None


def _token(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _role_words(messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool) -> str:
    """A chat in the words of ChatML, about as long as in other templates."""
    turns = "".join(f"<|im_start|>{turn.get('role')}\n{turn.get('content')}<|im_end|>\n" for turn in messages)
    return turns + "<|im_start|>assistant\n" * add_generation_prompt
