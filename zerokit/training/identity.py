"""The identity of a run: id, settings, data and model, written into each checkpoint."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from zerokit.checkpoint.step_folder import IDENTITY_FILE
from zerokit.config.base import AUTO, ZERO
from zerokit.config.key_index import canonical, section_at
from zerokit.distributed.run_policy import RunPolicy
from zerokit.documents import KeyPath, dotted, leaves, read_document, replace_nonfinite, value_at
from zerokit.errors import CheckpointError, DocumentError
from zerokit.files import write_file
from zerokit.recipe import LoadedRecipe
from zerokit.recipe.model import DataSection, TaskSection
from zerokit.tables import table_of
from zerokit.training.peft.keys import defaults_of

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainingArguments

    from zerokit.training.model import PreparedModel
    from zerokit.training.streaming import Stream

_TABLE = table_of(__file__)
_LEARNING: Sequence[str] = _TABLE["learning"]
"""TrainingArguments that affect what is learned, except for the length of the run, which may grow."""

_LEARNING_OF_TASK: Sequence[str] = _TABLE["learning_of_task"]
"""Keys of the recipe's `task` that affect what is learned from the same examples."""

_NOT_LEARNING: Sequence[str] = _TABLE["not_learning"]
"""Sections of a ds_config that affect no weight. Batch sizes are compared by their product."""

_PARTITIONING: Sequence[str] = _TABLE["partitioning"]
"""Keys of zero_optimization that decide how a checkpoint is partitioned."""

_MOST_NAMED = 4
_RUN_ID = re.compile(r"[0-9a-f]{1,64}")


@dataclass(frozen=True)
class Identity:
    """The identity of a run. A resumed run keeps its id."""

    run_id: str
    """Hexadecimal."""
    started: str
    """When the run began, in UTC, as ISO 8601."""
    world_size: int
    examples_per_step: int
    training: dict[str, Any]
    """TrainingArguments that affect what is learned."""
    deepspeed: dict[str, Any]
    """Parts of the ds_config that affect what is learned."""
    recipe: dict[str, Any]
    """The sections `data`, `task` and `peft` as written, to explain why examples differ."""
    model: dict[str, Any]
    """The model's config."""
    weights: str | None
    """Digest of the initial weights; None from scratch and in a rehearsal."""
    num_examples: int
    """For streamed data, sequences of the first buffer."""
    examples: str
    """SHA-256 of all tokens and labels; for streamed data, those of the first buffer."""
    streamed_files: str | None = None
    """Digest of streamed files; None if no files are streamed, or unknown."""

    def write(self, folder: Path) -> None:
        """Write ``zerokit_run.json`` into a checkpoint."""
        text = json.dumps(replace_nonfinite(asdict(self)), indent=2, default=str, allow_nan=False)
        write_file(folder / IDENTITY_FILE, text + "\n")


def identify(
    loaded: LoadedRecipe,
    args: TrainingArguments,
    ds_config: Mapping[str, Any],
    model: PreparedModel,
    train: Dataset,
    *,
    world_size: int,
    data_ranks: int,
    weights: str | None = None,
    stream: Stream | None = None,
) -> Identity:
    """The identity of a new run; reads all examples, or the files of `stream`. Raises DataError."""
    written = loaded.recipe.model_dump(mode="json", exclude_unset=True)
    given = {name: value for name, value in args.to_dict().items() if name in _LEARNING}
    steps = args.per_device_train_batch_size * args.gradient_accumulation_steps * data_ranks
    identity = Identity(
        run_id=secrets.token_hex(4),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        world_size=world_size,
        examples_per_step=steps,
        training=given,
        deepspeed={key: value for key, value in ds_config.items() if key not in _NOT_LEARNING}
        | {ZERO: {key: ds_config[ZERO][key] for key in _PARTITIONING if ds_config[ZERO].get(key, AUTO) != AUTO}},
        recipe={name: written.get(name) for name in ("data", "task", "peft")},
        # What transformers adds on reading or saving it is none of its sizes.
        model={key: value for key, value in model.config.to_dict().items() if key not in _ADDED},
        weights=weights,
        num_examples=len(train),
        examples=_examples_digest(train, "" if stream is None else stream.order),
        streamed_files=None if stream is None else stream.source.content(),
    )
    # As it will be read: tuples as lists, keys as text.
    return _from(json.loads(json.dumps(replace_nonfinite(asdict(identity)), default=str)))


_ADDED = ("transformers_version", "_name_or_path", "dtype", "architectures", "use_cache")


def read_identity(checkpoint: Path) -> Identity | None:
    """The identity of a checkpoint's run; None if it has none. CheckpointError if damaged."""
    file = checkpoint / IDENTITY_FILE
    if not file.is_file():
        return None
    try:
        found = _from(read_document(file, folder=checkpoint).data)
        if not (isinstance(found.run_id, str) and _RUN_ID.fullmatch(found.run_id)):  # it names a folder
            raise ValueError(f"the run_id {found.run_id!r} is not hexadecimal")
        return found
    except (DocumentError, TypeError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"cannot be read: {error}", where=file, hint="Remove it to resume without a comparison"
        ) from None


def _from(data: Any) -> Identity:
    return Identity(**{field.name: data[field.name] for field in fields(Identity) if field.name in data})


def _named(source: object) -> str:
    return ", ".join(map(str, source)) if isinstance(source, list) else str(source)


def differences(was: Identity, now: Identity) -> list[str]:
    """Descriptions of what makes `now` another run than `was`; empty for the same run."""
    found = [
        *_changed("training", was.training, now.training),
        *_changed("deepspeed", was.deepspeed, now.deepspeed, _default_of_deepspeed(now.deepspeed)),
        *_changed("peft", _adapter(was), _adapter(now), _default_of_adapter(was, now)),
        *_changed("model", was.model, now.model),
        *_changed("task", _learning(was.recipe["task"]), _learning(now.recipe["task"]), _DEFAULTS["task"]),
    ]
    found += num_examples_differ(was, now)
    if RunPolicy.current().reads_weights and was.weights != now.weights:
        found.append("the model to start from has other weights")
    if was.examples != now.examples:
        causes = [
            cause
            for section in _DEFAULTS
            for cause in _changed(section, was.recipe[section] or {}, now.recipe[section] or {}, _DEFAULTS[section])
            if cause not in found
        ]
        how = f"{now.num_examples:,}, were {was.num_examples:,}"
        if was.num_examples == now.num_examples:
            how = "as many"
        causes = causes or [f"the content of {_named(now.recipe['data']['train'])} has changed"]
        found.append(", ".join([f"the training examples differ ({how})", *causes]))
    elif was.streamed_files is not None and was.streamed_files != now.streamed_files:
        found.append("the content of the streamed files has changed")
    return found


def recipe_differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Values in which two recipes differ, apart from those that no weight depends on and the run's length."""

    def compared(recipe: Mapping[str, Any]) -> dict[str, Any]:
        training = {key: value for key, value in recipe["training"].items() if key in _LEARNING}
        sections = {name: recipe.get(name) for name in _COMPARED} | {"training": training}
        return {name: section for name, section in sections.items() if section}

    def default(path: KeyPath) -> Any:
        section, *inner = path
        return _DEFAULTS[str(section)](tuple(inner)) if section in _DEFAULTS and inner else None

    return list(_changed(None, compared(was), compared(now), default))


_COMPARED = ("model", "data", "task", "peft", "deepspeed", "precision", "matmul_precision")


def _learning(task: Mapping[str, Any] | None) -> dict[str, Any]:
    """Keys of a recipe's `task` that affect what is learned from the same examples."""
    return {name: value for name, value in (task or {}).items() if name in _LEARNING_OF_TASK}


def _adapter(run: Identity) -> dict[str, Any]:
    """The section `peft`; an empty one asks for an adapter, too."""
    section = run.recipe["peft"]
    return {} if section is None else {"type": "lora", **section}


def _default_of_adapter(was: Identity, now: Identity) -> Callable[[KeyPath], Any]:
    both = _adapter(was) and _adapter(now)
    defaults = defaults_of(str(_adapter(now)["type"])) if both else {}  # peft may be gone
    return lambda path: value_at(defaults, path)


def _default_of_deepspeed(config: Mapping[str, Any]) -> Callable[[KeyPath], Any]:
    def default(path: KeyPath) -> Any:
        *above, key = canonical(path)
        section = section_at(tuple(above), config)
        field = section.model_fields.get(str(key)) if section else None
        return None if field is None or field.is_required() else field.get_default(call_default_factory=True)

    return default


def _default_in(section: BaseModel) -> Callable[[KeyPath], Any]:
    defaults = section.model_dump(mode="json")
    return lambda path: value_at(defaults, path)


_DEFAULTS = {"data": _default_in(DataSection.model_construct()), "task": _default_in(TaskSection())}
"""Defaults of the sections that decide how examples are made."""


def num_examples_differ(was: Identity, now: Identity) -> list[str]:
    """Whether a step would train on more or fewer examples, as a description; empty if not."""
    if was.examples_per_step == now.examples_per_step:
        return []
    return [f"a step now has {now.examples_per_step} examples; the checkpoint's run had {was.examples_per_step}"]


def in_words(different: list[str]) -> str:
    """The first few differences."""
    more = len(different) - _MOST_NAMED
    return "; ".join([*different[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])


def _changed(
    section: str | None,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    default: Callable[[KeyPath], Any] = lambda path: None,
) -> Iterator[str]:
    """Each value that differs; writing a default out makes no difference."""
    before, after = dict(leaves(was)), dict(leaves(now))
    for path in dict.fromkeys([*before, *after]):
        old, new = (of[path] if path in of else default(path) for of in (before, after))
        if old != new:
            name = dotted(path if section is None else (section, *path))
            yield f"{name} is {_shown(after.get(path))}, was {_shown(before.get(path))}"


def _shown(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _examples_digest(train: Dataset, more: str) -> str:
    import numpy

    digest = hashlib.sha256(more.encode())
    for batch in train.with_format("arrow").iter(batch_size=1000):
        for name in sorted(train.column_names):
            numbers = batch[name].combine_chunks()
            while hasattr(numbers, "value_lengths"):  # lists
                digest.update(numpy.ascontiguousarray(numbers.value_lengths(), dtype="<i8").tobytes())
                numbers = numbers.flatten()
            digest.update(numpy.ascontiguousarray(numbers, dtype="<i8").tobytes())
    return digest.hexdigest()
