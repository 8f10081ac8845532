"""Files that `torch.save` left out: `torch.load` reads them again, on the ranks rehearsed together.

What is kept is the object without its tensors' values: shapes, dtypes and devices, and which of them share
memory. Small tensors whose values are known keep them.
"""

from __future__ import annotations

import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.errors import RehearsalGap
from zerokit.rehearsal.native.backend import SMALL_BYTES, Backend
from zerokit.rehearsal.ranks.exchange import Exchange
from zerokit.rehearsal.watching.weights_only import is_weights_only, load_weights

_LOAD = Patch("torch", "load", "read what was left out of files")
_ELSEWHERE = "Read it only where ZEROKIT_REHEARSAL is not set"


class _Storage(NamedTuple):
    nbytes: int
    device: str


class _Tensor(NamedTuple):
    storage: int
    """Its place among the storages."""
    offset: int
    """In elements."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    parameter: bool
    requires_grad: bool
    value: Any
    """On the host; None if it is not kept."""


class _Kept(NamedTuple):
    state: tuple[int, int] | None
    """Of the file at the path: if that has changed, it has been written since."""
    structure: bytes
    storages: list[_Storage]
    tensors: list[_Tensor]
    problem: str
    """Why nothing is kept but that the file was left out; empty if all is."""


class UnwrittenFiles:
    """What files would hold that were left out.

    Args:
        backend: of this rank.
        exchange: by which the ranks of one rehearsal find each other's.
    """

    def __init__(self, backend: Backend, exchange: Exchange) -> None:
        self._backend = backend
        self._exchange = exchange
        self._kept: dict[str, _Kept] = {}

    def install(self) -> None:
        """Have `torch.load` find them."""
        wrap(_LOAD, self._load)

    def keep(self, what: Any, file: Any, protocol: int, *, by_pickle: bool) -> None:
        """`what` would have been written to `file`; a file without a name is passed over.

        Args:
            what: is saved.
            file: as `torch.save` takes it.
            protocol: of pickle.
            by_pickle: whether Python's own pickle writes it: what it cannot write, `torch.save` cannot.

        Raises:
            Exception: it cannot be written.
        """
        path = _real_path(file)
        if path is None:
            return
        if hasattr(file, "flush"):  # or what the script wrote before would look written later
            file.flush()
        written = io.BytesIO()
        pickler = _WithoutTensors(written, protocol, self._backend)
        problem = ""
        try:
            pickler.dump(what)
        except _KeptByTorchAloneError as error:
            problem = str(error)
        except Exception as error:
            if by_pickle and isinstance(error, pickle.PicklingError | AttributeError | TypeError):
                raise
            problem = f"{type(error).__name__}: {error}"
        kept = _Kept(_state(path), written.getvalue(), pickler.storages, pickler.tensors, problem)
        self._kept[path] = kept
        if self._exchange.is_active:
            self._exchange.publish_file(path, pickle.dumps(kept))

    def _load(self, load: Any, f: Any, map_location: Any = None, *arguments: Any, **given: Any) -> Any:
        path = _real_path(f)
        kept = None if path is None else self._find(path)
        if kept is None:
            return load(f, map_location, *arguments, **given)
        if kept.problem:
            raise RehearsalGap(
                f"what {path} would hold, which was not written ({kept.problem})", hint=_ELSEWHERE
            )
        given.pop("mmap", None)  # there is no file to be mapped
        anew = _Anew(kept, self._backend, map_location)

        def load_really(file: Any) -> Any:
            return load(file, map_location, *arguments, **given)

        if is_weights_only(load_really):
            return load_weights(kept.structure, anew.persistent_load, load_really)
        return anew.load()

    def _find(self, path: str) -> _Kept | None:
        """What was left out of `path`, unless it has been written since."""
        state = _state(path)
        kept = self._kept.get(path)
        if kept is None or kept.state != state:
            # On the cluster ranks wait for what is read; here it may not be there yet, or just be opened.
            published = self._exchange.files_of_others(path, wait=state is None or not state[1])
            state = _state(path)
            others = (pickle.loads(one) for one in published)  # noqa: S301  written by this very run
            kept = next((one for one in others if one.state == state), None)
        return kept


class _KeptByTorchAloneError(Exception):
    """What `torch.save` writes, and is not kept here."""


class _WithoutTensors(pickle.Pickler):
    def __init__(self, file: io.BytesIO, protocol: int, backend: Backend) -> None:
        super().__init__(file, protocol=protocol)
        self._backend = backend
        self._places: dict[int, int] = {}
        self._places_of_storages: dict[int, int] = {}
        self._alive: list[Any] = []  # so that their identities, and their storages', stay unique
        self.storages: list[_Storage] = []
        self.tensors: list[_Tensor] = []

    def persistent_id(self, item: Any) -> tuple[str, int] | None:
        """``storage`` and a number, for a tensor: torch's reader of weights takes nothing but storages."""
        import torch

        if isinstance(item, torch.storage.TypedStorage | torch.UntypedStorage):
            raise _KeptByTorchAloneError("a storage by itself")
        if not isinstance(item, torch.Tensor):
            return None
        if type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise _KeptByTorchAloneError(f"a {type(item).__name__}, a tensor of a kind of its own")
        if item.layout != torch.strided or item.is_quantized:
            raise _KeptByTorchAloneError(f"a tensor of layout {item.layout} and type {item.dtype}")
        if id(item) not in self._places:
            self._places[id(item)] = len(self.tensors)
            self._alive.append(item)
            self.tensors.append(self._without_values(item))
        return "storage", self._places[id(item)]

    def _without_values(self, tensor: Any) -> _Tensor:
        import torch

        storage = tensor.untyped_storage()
        place = self._places_of_storages.setdefault(storage._cdata, len(self.storages))
        if place == len(self.storages):
            self.storages.append(_Storage(storage.nbytes(), str(tensor.device)))
        is_small = tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu"
        return _Tensor(
            place,
            tensor.storage_offset(),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            isinstance(tensor, torch.nn.Parameter),
            tensor.requires_grad and tensor.is_leaf,
            tensor.detach().clone() if is_small and not self._backend.is_made_up(storage) else None,
        )


class _Anew(pickle.Unpickler):
    """Makes each storage once, and the tensors over it."""

    def __init__(self, kept: _Kept, backend: Backend, map_location: Any) -> None:
        super().__init__(io.BytesIO(kept.structure))
        self._kept, self._backend, self._map_location = kept, backend, map_location
        self._known = {tensor.storage for tensor in kept.tensors if tensor.value is not None}
        self._storages: dict[int, Any] = {}
        self._made: dict[int, Any] = {}

    def persistent_load(self, reference: tuple[str, int]) -> Any:
        _, place = reference
        if place not in self._made:
            self._made[place] = self._make(self._kept.tensors[place])
        return self._made[place]

    def _storage(self, place: int) -> Any:
        import torch

        if place not in self._storages:
            nbytes, saved_on = self._kept.storages[place]
            device = _placed(saved_on, self._map_location)
            made = torch.empty(nbytes, dtype=torch.uint8, device=device)
            if made.device.type == "cpu" and place not in self._known:
                self._backend.never_fill(made)
            self._storages[place] = made.untyped_storage()
        return self._storages[place]

    def _make(self, tensor: _Tensor) -> Any:
        import torch

        storage = self._storage(tensor.storage)
        with torch.no_grad():
            made = torch.empty(0, dtype=tensor.dtype, device=storage.device)
            made.set_(storage, tensor.offset, tensor.shape, tensor.stride)
            if tensor.value is not None:
                made.copy_(tensor.value)
            elif made.device.type != "cpu":
                self._backend.make_up(made)
        if tensor.parameter:
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


def path_of(file: Any) -> str | os.PathLike[str] | None:
    """The path of what `torch.save` takes; None if it has none."""
    path = file if isinstance(file, str | os.PathLike) else getattr(file, "name", None)
    return path if isinstance(path, str | os.PathLike) else None


def _real_path(file: Any) -> str | None:
    path = path_of(file)
    return None if path is None else os.path.realpath(path)


def _state(path: str) -> tuple[int, int] | None:
    """When the file was last written, in ns, and its bytes; None if there is none."""
    with suppress(OSError):
        found = Path(path).stat()
        return found.st_mtime_ns, found.st_size
    return None


def _placed(device: str, map_location: Any) -> Any:
    """Where `map_location`, of any form that `torch.load` takes, puts what was saved on `device`."""
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return map_location.get(device, device)
    # A function is asked for storages, which most leave where they are read: on the host.
    return "cpu" if callable(map_location) else map_location
