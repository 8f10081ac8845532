"""Archives of `torch.save` that are made to harm, or otherwise than usual."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.validation.faults.checkpoints import Tensor
from tests.validation.faults.checkpoints import archive as written
from zerokit.checkpoint import torch_file
from zerokit.checkpoint.pickles import check_pickles
from zerokit.checkpoint.saved_states import shapes_of
from zerokit.checkpoint.torch_file import Size, read_archive
from zerokit.checkpoint.torch_file_writer import make_pickle
from zerokit.documents.pickle_limits import guarded
from zerokit.errors import CheckpointError

HUGE_MEMO = b"\x80\x02Nr" + (100_000_000).to_bytes(4, "little") + b"."


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save({"weight": torch.arange(6.0)}, tmp_path / "states.pt")
    return tmp_path / "states.pt"


def put(file: Path, name: str, content: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    """Write an archive again with another member."""
    with zipfile.ZipFile(file) as old:
        members = {member: old.read(member) for member in old.namelist()}
    with zipfile.ZipFile(file, "w") as new:
        for member, old_content in members.items():
            if member == f"states/{name}":
                new.writestr(member, content, compression)
            else:
                new.writestr(member, old_content)


@pytest.mark.parametrize(
    ("name", "content", "compression", "message"),
    [
        ("byteorder", b"little", zipfile.ZIP_DEFLATED, "states/byteorder is compressed"),
        ("byteorder", b"little" * 1000, zipfile.ZIP_STORED, "states/byteorder has 6,000 bytes"),
        ("data.pkl", b"N.", zipfile.ZIP_DEFLATED, "states/data.pkl is compressed"),
        ("data.pkl", b"N." * 600, zipfile.ZIP_STORED, "states/data.pkl has 1,200 bytes"),
        ("data.pkl", HUGE_MEMO, zipfile.ZIP_STORED, "its pickle has an object of number 100,000,000"),
        ("data.pkl", b"Np99999999\n.", zipfile.ZIP_STORED, "its pickle has an object of number 99,999,999"),
    ],
)
def test_a_bomb_is_refused(
    name: str, content: bytes, compression: int, message: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_file, "_MAX_PICKLE_BYTES", 1000)
    put(file, name, content, compression)
    with pytest.raises(CheckpointError, match=message):
        read_archive(file)


def test_a_plain_pickle_is_no_bomb_either(file: Path) -> None:
    file.write_bytes(HUGE_MEMO)
    with pytest.raises(CheckpointError, match="its pickle has an object of number 100,000,000"):
        read_archive(file)


MODULUS = 2**61 - 1
"""Integers that differ by a multiple of it have the same hash."""
OF_ONE_HASH = [number * MODULUS for number in range(1, 30_000)]


def nested() -> Any:
    """A tuple that holds another twice, which holds another twice, and so on."""
    inner: Any = (1, 2)
    for _ in range(60):
        inner = (inner, inner)
    return inner


KEYS = [pickle.dumps(number, 2)[2:-1] for number in OF_ONE_HASH]
"""Pickled; Python itself would take long to make a dict of them."""


RESET = b"N}U\x08_numbers}s\x86b"
"""Sets an attribute of a dict: (None, {"_numbers": {}})."""
ORDERED = b"ccollections\nOrderedDict\n"
HARMFUL = {
    "integers": b"\x80\x02}" + b"".join(key + b"Ns" for key in KEYS) + b".",
    "integers at once": b"\x80\x02}(" + b"".join(key + b"N" for key in KEYS) + b"u.",
    "integers in lines": b"(d" + b"".join(b"L%dL\nNs" % number for number in OF_ONE_HASH) + b".",
    "integers in tuples": b"\x80\x02}" + b"".join(key + b"\x85Ns" for key in KEYS) + b".",
    "integers in a shape": b"\x80\x02}" + b"".join(b"ctorch\nSize\n" + key + b"\x85\x85RNs" for key in KEYS) + b".",
    "integers of an OrderedDict": b"\x80\x02" + ORDERED + b")R" + b"".join(key + b"Ns" for key in KEYS) + b".",
    "integers of a call": b"\x80\x02" + ORDERED + b"((" + b"".join(key + b"N\x86" for key in KEYS) + b"ttR.",
    "integers of a checked dict": b"\x80\x02czerokit\ndict\n((" + b"".join(key + b"N\x86" for key in KEYS) + b"ttR.",
    "counters that are reset": b"\x80\x02}" + b"".join(key + b"Ns" + RESET for key in KEYS) + b".",
    "counters of an OrderedDict that are reset": b"\x80\x02"
    + ORDERED
    + b")R"
    + b"".join(key + b"Ns" + RESET for key in KEYS)
    + b".",
    "integers of a set": b"\x80\x02c__builtin__\nset\n](" + b"".join(KEYS) + b"e\x85R.",
    "integers of a Counter": b"\x80\x02ccollections\nCounter\n)R(" + b"".join(key + b"N" for key in KEYS) + b"u.",
    "a dict at once": b"(" + b"".join(key + b"N" for key in KEYS) + b"d.",
    "tuples in a key": b"\x80\x02}" + pickle.dumps(nested(), 2)[2:-1] + b"Ns.",
    "a tuple in a tuple of a key": pickle.dumps({((1, 2), 3): None}, 2),
    "a long integer": pickle.dumps(1 << 100_000, 2),
}


ONLY_RECORDS = ("integers of a set",)
"""Which zerokit's own reader does not hash."""


OTHERWISE = {
    "tuples in a key": "its pickle has a tuple of tuples as a key",
    "a tuple in a tuple of a key": "its pickle has a tuple of tuples as a key",
    "a long integer": "its pickle has an integer of",
    "counters that are reset": "a dict with a state",
    "counters of an OrderedDict that are reset": "an OrderedDict with an unknown state",
    "a dict at once": "its pickle has an unknown operation 0x64",
    "integers of a Counter": "its pickle would load 'collections.Counter'",
}
"""Why they are refused, but for keys of one hash."""


@pytest.mark.parametrize("kind", HARMFUL)
def test_no_small_pickle_takes_hours(kind: str, file: Path) -> None:
    """Python takes the square of the time for keys of one hash: a dict of them is refused after a hundred."""
    put(file, "data.pkl", HARMFUL[kind])
    of_one_hash = "its pickle has more than 100 keys of one hash"
    why = OTHERWISE.get(kind, of_one_hash)
    with nullcontext() if kind in ONLY_RECORDS else pytest.raises(CheckpointError, match=why):
        read_archive(file)
    why = of_one_hash if kind == "integers of a Counter" else why
    with pytest.raises(CheckpointError, match=why) as refused:
        check_pickles(file.parent, [file.name])
    assert len(str(refused.value)) < 500


def test_a_set_of_integers_is_not_hashed(file: Path) -> None:
    keys = b"".join(KEYS)
    put(file, "data.pkl", b"\x80\x04\x8f(" + keys + b"\x90(" + keys + b"\x91\x86.")
    (one, other) = read_archive(file).content
    assert one.name == "builtins.set"
    assert sorted(one.arguments[0]) == sorted(other) == OF_ONE_HASH


def test_a_tensor_of_too_many_dimensions_is_refused(file: Path) -> None:
    file.write_bytes(written("states.pt", {"weight": Tensor((1,) * 65)}))
    with pytest.raises(CheckpointError, match="a tensor of 65 dimensions"):
        read_archive(file)
    with pytest.raises(ValueError, match="a tensor of 100000 dimensions"):
        shapes_of({"param_shapes": [{"weight": Size((2**62,) * 100_000)}]})


def test_a_compressed_file_is_not_loaded(file: Path) -> None:
    put(file, "data.pkl", pickle.dumps({}, 2), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match="it is compressed"):
        check_pickles(file.parent, [file.name])


@pytest.mark.parametrize("protocol", range(6))
def test_dicts_and_sets_are_as_they_were(protocol: int, file: Path) -> None:
    shared = {"a": 1, 2: (3, "4"), None: [0.5], (1, "x"): True, -1: "}\x8f(d", -2: {}}
    ordered = OrderedDict([("z", shared), ("a", OrderedDict())])
    ordered.extra = {"version": 1}  # type: ignore[attr-defined]
    put(file, "data.pkl", pickle.dumps([shared, ordered, shared, {5}], protocol))
    one, two, three, four = read_archive(file).content
    assert one == three == two["z"] == shared
    assert one is three is two["z"]
    assert [*two] == ["z", "a"]
    assert isinstance(two, OrderedDict)
    assert vars(two) == {"extra": {"version": 1}}
    assert (four.name, four.called, four.arguments) == ("builtins.set", True, ([5],))
    again = pickle.loads(make_pickle([one, two]).content)
    assert again == [shared, ordered]
    assert vars(again[1]) == vars(two)


def test_an_archive_without_checksums_is_read(file: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"weight": torch.arange(6.0)}, file)
    finally:
        torch.serialization.set_crc32_options(before)
    found = read_archive(file)
    assert found.content["weight"].shape == (6,)
    assert [storage.crc for storage in found.storages] == [None]


@pytest.mark.parametrize("make", [os.mkfifo, lambda file: file.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(make: Callable[[Path], Any], file: Path) -> None:
    file.unlink()
    make(file)
    with pytest.raises(CheckpointError, match=r"states\.pt: is a (pipe|device), not a regular file"):
        read_archive(file)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_is_followed_to_its_end_in_all_protocols_and_not_without_one(protocol: int) -> None:
    data = [None, True, 7, 300, -1, 1 << 70, 1 << 3000, 0.5, b"a" * 300, bytearray(b"r"), "\u00e9r" * 200]
    content = pickle.dumps([data, {"r": (1, 2), "x": [str(n) for n in range(400)]}, {3}, Path("a")], protocol)
    guarded(io.BytesIO(content))
    for end in range(0, len(content), 7):
        with pytest.raises(ValueError, match=r"its pickle has (no end|an unknown operation)"):
            guarded(io.BytesIO(content[:end]))
