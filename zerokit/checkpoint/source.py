"""Finds a model to start from, and checks it before any rank loads it.

Loading under ZeRO-3 is collective: a file that breaks halfway leaves the other ranks waiting. So all problems
are found here, on the host, from file headers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from zerokit.checkpoint.adapter_names import ADAPTER_CONFIG, LEARNED_TOKENS, WITH_PEFT
from zerokit.checkpoint.step_folder import find_step_folder, has_step_folder
from zerokit.distributed.run_policy import RunPolicy
from zerokit.documents import (
    COPY_HINT,
    MAX_BYTES,
    MAX_TABLE_BYTES,
    Document,
    is_file,
    read_document,
    unreadable_reason,
)
from zerokit.errors import DocumentError, ModelError, printable
from zerokit.hub import describe_failure, is_hub_id
from zerokit.tables import table_of

_DOWNLOADED = ("*.json", "model*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken")
"""Files of a model that zerokit downloads from the Hub."""
_HUB_COPIES = ["original/*", "*.fp16*.safetensors"]
"""The same weights in other formats."""
WEIGHTS_INDEX = "model.safetensors.index.json"
"""The file that maps each weight to a file."""
_TABLE = table_of(__file__)
_OPENED: Sequence[str] = _TABLE["opened"]
"""Files of a model or adapter that zerokit, transformers, peft or safetensors may open or copy."""
_SETTINGS: Sequence[str] = _TABLE["settings"]
"""Settings files that transformers or peft read whole."""
_TABLES: Sequence[str] = _TABLE["tables"]
"""Files with an entry for each token or weight, which transformers or peft read whole.

Source: ``vocab_files_names`` of transformers' tokenizers, and the constants of its `utils`.
"""


def resolve_checkpoint(name: str, *, where: str, revision: str | None = None, remote_code: bool = False) -> Path:
    """The local folder of a model; a Hub id is downloaded first.

    Raises:
        ModelError: there is no such folder or Hub model.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise ModelError(f"'{name}' is a file, not a folder", where=where, hint="Name the folder it is in")
    if not is_hub_id(name):
        raise ModelError(f"no such model folder: '{name}'", where=where, hint="Check the path")
    files = [*_DOWNLOADED, *(["*.py"] if remote_code else [])]
    if not RunPolicy.current().reads_weights:
        files = [pattern for pattern in files if not pattern.endswith(".safetensors")]
    folder = _download(name, where=where, revision=revision, files=files)
    index = folder / WEIGHTS_INDEX
    if index.is_file() and RunPolicy.current().reads_weights:
        elsewhere = [one for one in _shard_names(index, where=where) if not (folder / one).is_file()]
        if elsewhere:  # in folders, or under names of their own
            _download(name, where=where, revision=revision, files=elsewhere)
    return folder


def check_before_launch(name: str, *, where: str, revision: str | None = None) -> None:
    """Check a model before ranks start; of a Hub model only the config is fetched.

    Raises:
        ModelError: there is no such folder or Hub model, it is incomplete, or the Hub cannot be reached.
    """
    if Path(name).expanduser().exists() or not is_hub_id(name):
        check_checkpoint(resolve_checkpoint(name, where=where), where=where)
    else:
        _download(name, where=where, revision=revision, files=["config.json"])


def check_checkpoint(folder: Path, *, where: str) -> Document:
    """Check that a folder has a config and complete safetensors weights; a rehearsal needs no weights.

    Returns:
        its config.json.

    Raises:
        ModelError: a file is missing, malformed, cut short, or has empty tensors.
    """
    check_files(folder, where=where)
    config = read_model_config(folder / "config.json", where=where)
    if RunPolicy.current().reads_weights:
        check_weights(folder, where=where)
    return config


def check_files(folder: Path, *, where: str) -> None:
    """Refuse files that must not be read, because transformers and other libraries do not check.

    Raises:
        ModelError: a file is special or leads out of the folder, or a settings or tokenizer file is far too
            large.
    """
    for pattern in _OPENED:
        for file in sorted(folder.glob(pattern)):
            check_file(file, folder, where=where)


def check_file(file: Path, folder: Path, *, where: str) -> None:
    """Check one file of a folder as :func:`check_files` does."""
    problem = unreadable_reason(file, folder)
    hint = COPY_HINT
    limit = _max_bytes(file.name)
    if problem is None and limit is not None and is_file(file) and file.stat().st_size > limit:
        problem, hint = f"is larger than {limit >> 20} MiB", "Copy the model again"
    if problem is not None:
        raise ModelError(f"{printable(file)} {problem}", where=where, hint=hint)


def _max_bytes(name: str) -> int | None:
    """The largest size of a file that transformers or peft read by its name; None for other files."""
    for limit, patterns in ((MAX_BYTES, _SETTINGS), (MAX_TABLE_BYTES, _TABLES)):
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return limit
    return None


def check_weights(folder: Path, *, where: str) -> None:
    """Check that the weights of a model or adapter are complete and not empty.

    Raises:
        ModelError: a file is missing, cut short, or has empty tensors.
    """
    empty = [name for file in weight_files(folder, where=where) for name in _empty_tensors(file, where)]
    if not empty:
        return
    what, hint = "weights", 'Save it again with "stage3_gather_16bit_weights_on_model_save": true'
    if (folder / ADAPTER_CONFIG).is_file():
        what, hint = "weights of the adapter", "Gather its parameters before save_pretrained"
        if not any(part in name for name in empty for part in _OF_LAYERS):
            what, hint = "weights of modules_to_save", "Train with peft 0.15.1 or later"
    checkpoint = "its DeepSpeed checkpoint"
    if has_step_folder(folder):
        checkpoint = f"{printable(find_step_folder(folder))}, which has them"
    raise ModelError(
        f"{len(empty)} {what} are empty, such as '{empty[0]}': they were saved from ZeRO-3 without being gathered",
        where=where,
        hint=f"Run 'zerokit checkpoint export' on {checkpoint}, and use what it writes. {hint}",
    )


_OF_LAYERS = (".lora_", ".ia3_")
"""In names of an adapter's weights, unlike those of its `modules_to_save`."""


def read_model_config(file: Path, *, where: str) -> Document:
    """Read a model's config.json, or that of a folder. ModelError if it is missing, malformed, or names no type."""
    file = file / "config.json" if file.is_dir() else file
    if not file.is_file():
        adapter = (file.parent / ADAPTER_CONFIG).is_file()
        steps = [path for path in file.parent.glob("checkpoint-*") if path.name[11:].isdecimal()]
        if steps and not adapter:
            newest = max(steps, key=lambda path: int(path.name[11:]))
            raise ModelError(f"'{file.parent}' has no final model yet", where=where, hint=f"Name {newest}")
        raise ModelError(
            f"'{file.parent}' is a peft adapter" if adapter else f"'{file.parent}' has no {file.name}",
            where=where,
            hint=_how_to_use(file.parent / ADAPTER_CONFIG) if adapter else "Name a model folder",
        )
    try:
        config = read_document(file)
    except DocumentError as error:
        raise ModelError(f"{error.where}: {error.message}", where=where, hint=error.hint) from None
    if not isinstance(config.data, dict) or "model_type" not in config.data:
        raise ModelError(f"{file} has no 'model_type'", where=where, hint="Add it, such as 'llama'")
    return config


def _how_to_use(adapter: Path) -> str:
    """The error for an adapter, which is no model by itself."""
    try:
        kind = read_document(adapter).data["peft_type"]
    except (DocumentError, KeyError, TypeError):
        kind = None
    if kind in LEARNED_TOKENS:
        return f"It has learned tokens ({kind}), which cannot be merged. {WITH_PEFT}"
    return "Merge it into its model first: 'zerokit checkpoint merge ADAPTER -o DIR'"


def weight_files(folder: Path, *, where: str) -> list[Path]:
    """The safetensors files of a model; all of them exist.

    Raises:
        ModelError: there are none, or one that the index names is missing, special or outside the folder.
    """
    index = folder / WEIGHTS_INDEX
    check_file(index, folder, where=where)
    if index.is_file():
        files = [folder / name for name in _shard_names(index, where=where)]
        for file in files:
            check_file(file, folder, where=where)
            if not file.is_file():
                raise ModelError(f"{file} is missing", where=where, hint="Copy the whole checkpoint")
        return files
    for name in ("model.safetensors", "adapter_model.safetensors"):
        check_file(folder / name, folder, where=where)
        if (folder / name).is_file():
            return [folder / name]
    if any(folder.glob("*.bin")):
        raise ModelError(
            f"'{folder}' has only pickled weights (.bin), which can run code when loaded",
            where=where,
            hint="Convert them to safetensors with save_pretrained",
        )
    raise ModelError(f"'{folder}' has no weights (model.safetensors)", where=where, hint="Copy the whole checkpoint")


def _shard_names(index: Path, *, where: str) -> list[str]:
    """The files that an index of weights names, relative to its folder.

    Raises:
        ModelError: it is malformed, names no file, or names one outside its folder.
    """
    try:
        values = read_document(index, max_bytes=MAX_TABLE_BYTES).data["weight_map"].values()
        paths = {PurePosixPath(name) for name in values}
    except (DocumentError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{index} is malformed", where=where, hint="Copy it again") from None
    if not paths:
        raise ModelError(f"{index} names no weights", where=where, hint="Copy the whole checkpoint")
    for path in paths:
        if path.is_absolute() or ".." in path.parts:
            raise ModelError(
                f"{index} names '{path}', which is outside its folder",
                where=where,
                hint="Copy the weights into the folder, and correct the index",
            )
    return sorted(map(str, paths))


def _empty_tensors(file: Path, where: str) -> list[str]:
    from safetensors import SafetensorError, safe_open

    if not os.access(file, os.R_OK):  # of which safetensors says that there is none
        raise ModelError(f"you may not read {file}", where=where, hint="Ask its owner for read permission")
    try:
        # Opening reads only the header, and compares the file's length with it.
        with safe_open(file, framework="np") as tensors:
            return [name for name in tensors.keys() if 0 in tensors.get_slice(name).get_shape()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f"{file} is damaged or cut short ({error})", where=where, hint="Copy or save it again"
        ) from None


def _download(name: str, *, where: str, revision: str | None, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, ignore_patterns=_HUB_COPIES))
    except Exception as error:
        from zerokit.models.catalogue import hub_id

        meant = hub_id(name)
        first = f"Did you mean '{meant}'? If so, name it; check" if meant else "Check the name,"
        what = "it" if revision is None else f"its revision '{revision}'"
        raise ModelError(
            f"'{name}' is no local folder, and {describe_failure(error, what)}",
            where=where,
            hint=f"{first} the network, and `hf auth login` for a gated model",
        ) from error
