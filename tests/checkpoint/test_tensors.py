from __future__ import annotations

from itertools import accumulate
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from zerokit.checkpoint.tensors import FlatTensors, Piece
from zerokit.checkpoint.torch_file import Storage, StoredTensor


def _storage(key: int) -> Storage:
    return Storage(Path("file"), str(key), 0, 1 << 20, None)


def _part(key: int, size: int) -> StoredTensor:
    return StoredTensor(_storage(key), 4 * key, "float32", (size,), (1,))


def _elements(pieces: list[Piece]) -> list[tuple[str, int]]:
    return [(piece.storage.key, piece.offset + 4 * number) for piece in pieces for number in range(piece.numel)]


@given(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=6), data=st.data())
def test_a_parameter_is_the_elements_from_its_place_on_whichever_parts_have_them(
    sizes: list[int], data: st.DataObject
) -> None:
    parts = [_part(key, size) for key, size in enumerate(sizes)]
    every = _elements([Piece(part.storage, part.offset, part.numel) for part in parts])
    begin = data.draw(st.integers(0, len(every)))
    end = data.draw(st.integers(begin, len(every)))
    flat = FlatTensors(parts)
    found = list(flat.pieces(begin, end - begin, "weight"))
    assert _elements(found) == every[begin:end]
    assert all(piece.numel for piece in found)
    whole = flat.tensor("weight", (len(every),), 0)
    assert _elements(list(whole.cut(begin, end + 3).pieces)) == every[begin : end + 3]


def test_a_parameter_is_found_without_looking_at_all_parts_again() -> None:
    looks = 0

    class Counted(StoredTensor):
        @property
        def numel(self) -> int:
            nonlocal looks
            looks += 1
            return super().numel

    sizes = [3] * 50
    flat = FlatTensors([Counted(_storage(key), 0, "float32", (size,), (1,)) for key, size in enumerate(sizes)])
    for offset in accumulate([0, *sizes[:-1]]):
        assert len(list(flat.pieces(offset, 3, "weight"))) == 1
    assert looks == len(sizes)
