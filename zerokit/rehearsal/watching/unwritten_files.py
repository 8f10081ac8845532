"""Files that `torch.save` left out, for the script that saved them: `torch.load` reads them again.

What is kept is the object without its tensors' values: shapes, dtypes and devices, and which of them are the
same. Small tensors whose values are known keep them.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from zerokit.patches import Patch, wrap
from zerokit.rehearsal.native.backend import SMALL_BYTES, Backend

_LOAD = Patch("torch", "load", "read what was left out of files")


class _Tensor(NamedTuple):
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    device: str
    parameter: bool
    requires_grad: bool
    value: Any
    """On the host; None if it is not kept."""


class _Kept(NamedTuple):
    structure: bytes
    tensors: list[_Tensor]


class UnwrittenFiles:
    """What files would hold that were left out."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kept: dict[str, _Kept] = {}

    def install(self) -> None:
        """Have `torch.load` find them."""
        wrap(_LOAD, self._load)

    def keep(self, what: Any, file: Any) -> None:
        """`what` would have been written to `file`; what is no path, or cannot be pickled, is passed over."""
        if not isinstance(file, str | os.PathLike):
            return
        written = io.BytesIO()
        pickler = _WithoutTensors(written, self._backend)
        try:
            pickler.dump(what)
        except Exception:
            return  # the script meets what the real saver says of it where it reads the file
        self._kept[_path(file)] = _Kept(written.getvalue(), pickler.tensors)

    def _load(self, load: Any, f: Any, map_location: Any = None, *arguments: Any, **given: Any) -> Any:
        is_path = isinstance(f, str | os.PathLike)
        kept = self._kept.get(_path(f)) if is_path and not Path(f).exists() else None
        if kept is None:
            return load(f, map_location, *arguments, **given)
        return _Anew(kept, lambda tensor: self._make(tensor, map_location)).load()

    def _make(self, tensor: _Tensor, map_location: Any) -> Any:
        import torch

        device = _placed(tensor.device, map_location)
        with torch.no_grad():
            made = torch.empty_strided(tensor.shape, tensor.stride, dtype=tensor.dtype, device=device)
            if tensor.value is not None:
                made.copy_(tensor.value)
            elif made.device.type == "cpu":
                self._backend.never_fill(made)
            else:
                self._backend.make_up(made)
        if tensor.parameter:
            return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)


class _WithoutTensors(pickle.Pickler):
    def __init__(self, file: io.BytesIO, backend: Backend) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._backend = backend
        self._places: dict[int, int] = {}
        self._alive: list[Any] = []  # by whose identity they are told apart
        self.tensors: list[_Tensor] = []

    def persistent_id(self, item: Any) -> int | None:
        import torch

        if isinstance(item, torch.storage.TypedStorage | torch.UntypedStorage):
            raise pickle.PicklingError("a storage by itself")
        if not isinstance(item, torch.Tensor):
            return None
        if id(item) not in self._places:
            self._places[id(item)] = len(self.tensors)
            self._alive.append(item)
            self.tensors.append(self._without_values(item))
        return self._places[id(item)]

    def _without_values(self, tensor: Any) -> _Tensor:
        import torch

        is_kept = tensor.nbytes < SMALL_BYTES and tensor.device.type == "cpu"
        return _Tensor(
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            str(tensor.device),
            isinstance(tensor, torch.nn.Parameter),
            tensor.requires_grad and tensor.is_leaf,
            tensor.detach().clone() if is_kept else None,
        )


class _Anew(pickle.Unpickler):
    def __init__(self, kept: _Kept, make: Callable[[_Tensor], Any]) -> None:
        super().__init__(io.BytesIO(kept.structure))
        self._kept, self._make = kept, make
        self._made: dict[int, Any] = {}

    def persistent_load(self, place: int) -> Any:
        if place not in self._made:
            self._made[place] = self._make(self._kept.tensors[place])
        return self._made[place]


def _path(file: str | os.PathLike[str]) -> str:
    return str(Path(file).absolute())


def _placed(device: str, map_location: Any) -> Any:
    """Where `map_location`, of any form that `torch.load` takes, puts what was saved on `device`."""
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return map_location.get(device, device)
    # A function is asked for storages, which most leave where they are read: on the host.
    return "cpu" if callable(map_location) else map_location
