"""What a rehearsed script does not write: checkpoints, logs of trackers, uploads.

Data with values is written, because scripts save the data that they have prepared, and read it again.
"""

from __future__ import annotations

import inspect
import io
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from zerokit.patches import Patch, declare, put, wrap
from zerokit.rehearsal.native.backend import Backend
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.watching.torch_files import TorchFiles, path_of, plain_parts, tensors_in
from zerokit.rehearsal.watching.watcher import Watcher
from zerokit.tables import table_of

_NO_TRACKERS = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
}
_TORCH_SAVE = Patch("torch", "save", "leave out files of tensors without values")
_SAVE_FILE = Patch("safetensors.torch", "save_file", "leave out files of tensors without values")
_SAVE_MODEL = Patch("safetensors.torch", "save_model", "leave out files of models without values")
_MERGE = Patch("deepspeed.utils.zero_to_fp32", "convert_zero_checkpoint_to_fp32_state_dict", "merge what is written")

_LEFT_OUT: list[tuple[Mapping[str, Any], tuple[Patch, ...]]] = [
    (
        row,
        declare(
            row["owner"],
            *row["functions"],
            purpose="write nothing and note it",
            since=row.get("since"),
            until=row.get("until"),
        ),
    )
    for row in table_of(__file__)
]
"""Rows of the table, each with its savers.

`what` would have been written, `returns` is the result of the savers, and `barrier` says whether they wait
for all ranks.
"""

_ABSENT = re.compile(r"no such file|not found|no file|does not exist|missing", re.IGNORECASE)


def not_written(error: BaseException, left_out: Iterable[str]) -> str | None:
    """The file or folder among those left out that `error` reports missing."""
    file = getattr(error, "filename", None)
    for path in left_out:
        if isinstance(file, str) and Path(file).absolute().is_relative_to(Path(path).absolute()):
            return path
        # One word without a folder may mean anything.
        is_named = os.sep in path and re.search(rf"(?<![\w./-]){re.escape(path)}(?![\w-])", str(error))
        if is_named and (isinstance(error, OSError) or _ABSENT.search(str(error))):
            return path
        if _is_renamed(Path(path), error):
            return path
    return None


def _is_renamed(path: Path, error: BaseException) -> bool:
    """Whether `error` names a file like that of `path`, whose folder the script has renamed since."""
    name = re.search(rf"/{re.escape(path.name)}(?![\w-])", f"{getattr(error, 'filename', None)} {error}")
    return name is not None and isinstance(error, FileNotFoundError) and not path.parent.exists()


def _repository(*arguments: Any, repo_id: str | None = None, repo_type: str | None = None, **_: Any) -> Any:
    """What `create_repo` returns for a repository of that name; TypeError without a name."""
    from huggingface_hub import RepoUrl
    from huggingface_hub.constants import ENDPOINT, REPO_TYPES_URL_PREFIXES

    name = next((one for one in (repo_id, *arguments) if isinstance(one, str)), None)
    if name is None:
        raise TypeError("create_repo: repo_id, the name of the repository, is missing")
    name = name if "/" in name else f"you/{name}"  # as the Hub puts the user's name before it
    return RepoUrl(f"{ENDPOINT}/{REPO_TYPES_URL_PREFIXES.get(repo_type or '', '')}{name}")


class SuppressedWrites(Watcher):
    """Counts the writes that were left out, by what would have been written."""

    def __init__(self, backend: Backend, exchange: Exchange) -> None:
        self._backend = backend
        self._counts: Counter[str] = Counter()
        self._files = TorchFiles(backend, exchange)
        self.left_out: dict[str, None] = {}
        """Files and folders that were not written, by the script's names."""

    def _leave_out(self, target: Any) -> None:
        path = path_of(target)
        if path is not None and Path(path).name:
            self.left_out[os.fspath(path)] = None

    def lines(self) -> list[str]:
        """One line for each kind of write, with how often the script wanted it."""
        return [what if count == 1 else f"{what} ({count} times)" for what, count in self._counts.items()]

    def _instead_of(self, row: Mapping[str, Any], saver: Patch) -> Callable[..., Any]:
        import torch.distributed as dist

        def leave_out(*arguments: Any, **given: Any) -> Any:
            self._counts[row["what"]] += 1
            if row.get("barrier") and dist.is_initialized():
                dist.barrier()
            if saver.name.startswith("save"):  # what is saved comes first, then where to
                self._leave_out(given.get("save_directory", given.get("save_dir", (*arguments, None, None)[1])))
            return _repository(*arguments, **given) if saver.name == "create_repo" else row.get("returns")

        return leave_out

    def on_process_start(self) -> None:
        os.environ.update(_NO_TRACKERS)
        wrap(_TORCH_SAVE, self._torch_save)
        self._files.install()
        wrap(_SAVE_FILE, self._save_file)
        wrap(_SAVE_MODEL, self._save_model)
        wrap(_MERGE, self._merge)
        for row, savers in _LEFT_OUT:
            for saver in savers:
                put(saver, self._instead_of(row, saver))

    def _torch_save(self, save: Any, obj: Any, f: Any, *arguments: Any, **given: Any) -> None:
        # What is only kept in memory is how objects travel between ranks.
        if isinstance(f, io.BytesIO) or not lacks_values(obj, self._backend):
            save(obj, f, *arguments, **given)
            return
        self._counts[f"torch.save to {_file_name(f)}"] += 1
        if not self._files.save(save, obj, f, *arguments, **given):
            self._leave_out(f)

    def _save_file(self, save: Any, tensors: Any, filename: Any, *arguments: Any, **given: Any) -> None:
        if not self._leaves_out_safetensors(tensors, filename):
            save(tensors, filename, *arguments, **given)

    def _save_model(self, save: Any, model: Any, filename: Any, *arguments: Any, **given: Any) -> None:
        if not self._leaves_out_safetensors(model.state_dict(), filename):
            save(model, filename, *arguments, **given)

    def _merge(self, merge: Any, *arguments: Any, **given: Any) -> None:
        checkpoint, output, *_ = inspect.signature(merge).bind(*arguments, **given).arguments.values()
        if not any(Path(checkpoint).absolute().is_relative_to(Path(one).absolute()) for one in self.left_out):
            merge(*arguments, **given)
            return
        self._counts["weights merged from DeepSpeed checkpoints"] += 1
        self._leave_out(output)

    def _leaves_out_safetensors(self, tensors: Any, filename: Any) -> bool:
        """Whether a file of these tensors is left out; notes it if so."""
        is_left_out = lacks_values(tensors, self._backend)
        if is_left_out:
            self._counts[f"safetensors to {_file_name(filename)}"] += 1
            self._leave_out(filename)
        return is_left_out


def _file_name(target: Any) -> str:
    path = path_of(target)
    return "a file" if path is None else Path(path).name


def lacks_values(what: Any, backend: Backend) -> bool:
    """Whether `what` holds a tensor of the virtual GPU, or one of the host whose contents are made up."""
    return any(_lacks_values(one, backend) for one in tensors_in(what, and_storages=True))


def _lacks_values(item: Any, backend: Backend) -> bool:
    if item.device.type != "cpu":
        return bool(item.device.type == "cuda")
    storages = [part.untyped_storage() for part in plain_parts(item)] if hasattr(item, "layout") else [item]
    return any(map(backend.is_made_up, storages))
