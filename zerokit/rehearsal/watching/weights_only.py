"""What `torch.load` refuses with `weights_only`: the installed torch decides.

Whether it does is its own default (since 2.6), the script's argument or an environment variable; which
classes it takes all the same is a list of its own, and of the script's (`add_safe_globals`).
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from typing import Any


class _Unlisted:
    """On no list."""


def is_weights_only(load: Callable[[Any], Any]) -> bool:
    """Whether `load`, which is `torch.load` with all its arguments but the file, reads weights alone."""
    try:
        load(_archive(pickle.dumps(_Unlisted, protocol=2)))
    except pickle.UnpicklingError:
        return True
    return False


def load_weights(pickled: bytes, persistent_load: Callable[[Any], Any], load: Callable[[Any], Any]) -> Any:
    """What was pickled, as torch's reader of weights makes it.

    Args:
        pickled: with references ``("storage", number)`` in the place of tensors.
        persistent_load: makes a tensor of its reference.
        load: as of :func:`is_weights_only`.

    Raises:
        pickle.UnpicklingError: there is something in it that it does not take, in torch's words.
    """
    from torch._weights_only_unpickler import Unpickler

    reader: Any = Unpickler(io.BytesIO(pickled), encoding="utf-8")
    reader.persistent_load = persistent_load
    try:
        return reader.load()
    except pickle.UnpicklingError as error:
        refused = error
    # Ends at the same place, with advice that only torch.load gives.
    load(_archive(_without_references(pickled)))
    raise refused


def _archive(pickled: bytes) -> io.BytesIO:
    """A file of `torch.save`'s with these bytes in it, and no tensors."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", content)
    file.seek(0)
    return file


def _without_references(pickled: bytes) -> bytes:
    """The same, with what each reference is made of in its place."""
    references = {at for code, _, at in pickletools.genops(pickled) if code.name == "BINPERSID"}
    return bytes(byte for at, byte in enumerate(pickled) if at not in references)
