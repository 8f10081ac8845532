"""Files of `torch.save` for tensors without values: they take no room, and `torch.load` reads them again.

torch writes and reads them itself under `torch.serialization.skip_data`. zerokit adds one record: the values
of small tensors of the host, such as counters and states of random generators.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import SMALL_BYTES, Backend
from zerokit.rehearsal.ranks.exchange import Exchange

_LOAD = Patch("torch", "load", "read files without values")
_SAVE = Patch("torch.serialization", "_save", "write files without values", since="2.7")
_VALUES = "zerokit_values"
"""The name of the record."""


class TorchFiles:
    """Writes and reads the files; the exchange publishes which files are written."""

    def __init__(self, backend: Backend, exchange: Exchange) -> None:
        self._backend, self._exchange = backend, exchange
        self._values: bytes | None = None
        """For the file that is being written."""

    def install(self) -> None:
        """Replace `torch.load`, and what writes an archive."""
        wrap(_LOAD, self._load)
        wrap(_SAVE, self._write_archive)

    def save(self, save: Any, obj: Any, file: Any, *arguments: Any, **given: Any) -> bool:
        """Save `obj` by `save`, torch's own, without values; return whether this torch can."""
        import torch

        if not _SAVE.is_for(torch.__version__) or not given.get("_use_new_zipfile_serialization", True):
            return False
        values = [self._value(tensor) for tensor in tensors_in(obj)]
        self._values = pickle.dumps(values)
        try:
            with torch.serialization.skip_data():
                save(obj, file, *arguments, **given)
        finally:
            self._values = None
        path = _real_path(file)
        if path is not None:
            self._exchange.publish_file(path)
        return True

    def _value(self, tensor: Any) -> Any:
        """A copy of a small tensor; None if its values are not kept."""
        is_plain = tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided"
        if not is_plain or tensor.nbytes >= SMALL_BYTES or tensor.is_quantized:
            return None
        made_up = self._backend.is_made_up(tensor.untyped_storage())
        return None if made_up else tensor.detach().clone()

    def _write_archive(self, write: Any, obj: Any, archive: Any, *arguments: Any, **given: Any) -> None:
        values, self._values = self._values, None
        write(obj, archive, *arguments, **given)
        if values is not None:
            archive.write_record(_VALUES, values, len(values))

    def _load(self, load: Any, f: Any, map_location: Any = None, *arguments: Any, **given: Any) -> Any:
        import torch

        path = _real_path(f)
        if path is not None:
            self._exchange.wait_for_file(path, is_there=Path(path).exists() and Path(path).stat().st_size > 0)
        values = _values_in(f)
        if values is None:
            return load(f, map_location, *arguments, **given)
        given.pop("mmap", None)  # there is nothing to be mapped
        with torch.serialization.skip_data():
            loaded = load(f, map_location, *arguments, **given)
        with torch.no_grad(), self._backend.uncounted():
            for tensor, value in zip(tensors_in(loaded), pickle.loads(values), strict=False):  # noqa: S301  of this run
                if value is not None:
                    tensor.detach().copy_(value)
                elif tensor.device.type == "cpu":
                    for part in plain_parts(tensor):
                        self._backend.never_fill(part)
                elif tensor.device.type == "cuda":
                    self._backend.make_up(tensor)
        return loaded


class _Search(pickle.Pickler):
    """Collects the tensors of an object as pickle would write them, and writes nothing."""

    def __init__(self) -> None:
        nowhere: Any = SimpleNamespace(write=len)
        super().__init__(nowhere, protocol=pickle.HIGHEST_PROTOCOL)
        self.found: dict[int, Any] = {}

    def persistent_id(self, item: Any) -> str | None:
        import torch

        if isinstance(item, torch.storage.TypedStorage):
            item = item.untyped()  # type: ignore[no-untyped-call]
        if not isinstance(item, torch.Tensor | torch.UntypedStorage):
            return None
        self.found.setdefault(id(item), item)
        return "found"


def tensors_in(obj: Any, *, and_storages: bool = False) -> list[Any]:
    """The tensors in `obj`, each once, in pickle's order, up to what pickle cannot write."""
    import torch

    search = _Search()
    with suppress(Exception):
        search.dump(obj)
    return [one for one in search.found.values() if and_storages or isinstance(one, torch.Tensor)]


def plain_parts(tensor: Any) -> Iterator[Any]:
    """The strided tensors that a sparse one is made of; or the tensor itself."""
    import torch

    if tensor.layout == torch.strided:
        yield tensor
        return
    for name in ("_indices", "_values", "crow_indices", "col_indices", "values"):
        if hasattr(tensor, name):
            yield getattr(tensor, name)()


def path_of(file: Any) -> str | os.PathLike[str] | None:
    """The path of what `torch.save` takes; None if it has none."""
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return path if isinstance(path, str | os.PathLike) else None


def _real_path(file: Any) -> str | None:
    path = path_of(file)
    return None if path is None else os.path.realpath(path)


def _values_in(file: Any) -> bytes | None:
    """The record of a file without values; None of any other file."""
    if isinstance(file, io.BytesIO):
        return None
    place = file.tell() if hasattr(file, "tell") and hasattr(file, "seek") else None
    try:
        with zipfile.ZipFile(file) as archive:
            name = next((one for one in archive.namelist() if one.rpartition("/")[2] == _VALUES), None)
            return None if name is None else archive.read(name)
    except (OSError, ValueError, TypeError, AttributeError, zipfile.BadZipFile):
        return None  # torch reads or refuses it
    finally:
        if place is not None:
            file.seek(place)
