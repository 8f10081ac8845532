"""A run of one rank: its exit code, and the one line on stderr."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zerokit.distributed.group import RankGroup, run_on_all_ranks
from zerokit.distributed.ranks import Ranks
from zerokit.errors import DataError, LaunchError, ZerokitError


@pytest.fixture(autouse=True)
def _one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)


def test_a_run_that_returns_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[RankGroup] = []
    assert run_on_all_ranks(seen.append) == 0
    assert seen[0].ranks == Ranks()
    assert capsys.readouterr() == ("", "")


def test_bad_input_exits_with_its_code_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(group: RankGroup) -> None:
        group.together(lambda: fail_inside("x" * 300))

    def fail_inside(text: str) -> None:
        raise DataError(f"[bold]two\nlines {text}", where="a.jsonl:3", hint="Mend it")

    assert run_on_all_ranks(fail) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"zerokit: error: a.jsonl:3: [bold]two lines {'x' * 300}. Mend it\n"


@pytest.mark.torch
@pytest.mark.parametrize("words", [None, "bad input"])
def test_a_port_that_another_process_has_is_one_line(
    words: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def meet(group: RankGroup) -> None:
        if words is not None:
            raise DataError(words)
        group.gather_objects(None)

    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        for name, value in {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}.items():
            monkeypatch.setenv(name, value)
        assert run_on_all_ranks(meet) == 2
    said = capfd.readouterr().err
    assert f"zerokit: error: --master_port: another process has port {port}. Give the launcher a free" in said
    assert "Traceback" not in said
    assert words is None or f"zerokit: error: {words}\n" in said


def test_ctrl_c_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(group: RankGroup) -> None:
        raise KeyboardInterrupt

    assert run_on_all_ranks(interrupted) == 130
    assert capsys.readouterr().err == "zerokit: interrupted\n"


def test_a_bug_is_a_traceback_and_waits_for_no_other_rank(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bug(group: RankGroup) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(RankGroup, "close", lambda group: pytest.fail("it would wait for the others"))
    assert run_on_all_ranks(bug) == 1
    assert "KeyError: 'a bug'" in capsys.readouterr().err


def no_space() -> None:
    raise OSError(28, "No space left on device")


def no_memory() -> None:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB")


def quoted() -> None:
    raise KeyError("x") if os else MemoryError("Cannot allocate memory")


def without_mend() -> None:
    raise RuntimeError("zerokit: error: it is so")


@pytest.mark.parametrize(
    ("bug", "last"),
    [
        (no_space, r"zerokit: a disk is full\. Make .*"),
        (no_memory, r"zerokit: a GPU ran out of memory in a step: 2\.00 GiB more were requested\. Try .*"),
        (quoted, "KeyError: 'x'"),
        (without_mend, "zerokit: it is so"),
    ],
)
def test_a_known_cause_follows_its_traceback(
    bug: Callable[[], None], last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_on_all_ranks(lambda group: bug()) == 1
    assert re.fullmatch(last, capsys.readouterr().err.splitlines()[-1])


@pytest.mark.parametrize(
    ("module", "words", "said"),
    [
        ("torch.distributed.distributed_c10d", "Connection reset by peer", "has lost another rank"),
        ("deepspeed.runtime.zero.coordinator", "Broken pipe", "has lost another rank"),
        ("torch.distributed", "Timed out waiting", "has waited in vain for another rank"),
        ("hub_client", "Connection reset by peer", None),
    ],
)
def test_a_lost_rank_is_one_line(
    module: str, words: str, said: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    space: dict[str, Any] = {"__name__": module}
    exec(f"def lose(group):\n    raise RuntimeError('[pair.cc:537] {words} [127.0.0.1]:30623. GLHF!')", space)
    assert run_on_all_ranks(space["lose"]) == 1
    line = capsys.readouterr().err
    if said is None:
        assert "Traceback" in line
        assert words in line
    else:
        assert line.startswith(f"zerokit: error: rank 0: {said} ({words}), in ")
        assert line.count("\n") == 1


def test_a_rank_that_is_asked_to_end_as_it_says_why_has_said_it(capsys: pytest.CaptureFixture[str]) -> None:
    class AskedError(RuntimeError):
        def __str__(self) -> str:
            os.kill(os.getpid(), signal.SIGTERM)
            return "it is so"

    def fail(group: RankGroup) -> None:
        raise AskedError

    ended: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        assert run_on_all_ranks(fail) == 1
        assert not ended
        assert capsys.readouterr().err.endswith("AskedError: it is so\n")
        os.kill(os.getpid(), signal.SIGTERM)
        assert ended
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_launcher_that_cannot_be_understood_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "zero")
    assert run_on_all_ranks(lambda group: pytest.fail("it ran")) == 2
    assert capsys.readouterr().err == "zerokit: error: RANK: 'zero' is not a number. Unset it\n"


def test_phases_of_one_rank_are_plain_calls() -> None:
    group = RankGroup(Ranks())
    assert group.together(lambda: 5) == 5
    assert group.node_main_first(lambda: 6) == 6
    assert group.from_node_main(lambda: 7, where="w") == 7
    value = object()
    assert group.broadcast_object(value) is value
    assert group.gather_objects(value) == [value]
    group.close()


def test_one_rank_of_a_node_acts_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class FourRanks(RankGroup):
        def gather_objects(self, value: Any) -> list[Any]:
            is_result = value is not None
            return [("a", [{1}]), ("b", [second]), ("a", []), value] if is_result else [None] * 4

    def found() -> set[int]:
        group = FourRanks(Ranks(rank=3, world_size=4, local_rank=1, local_world_size=2))
        return group.from_node_main(lambda: pytest.fail("this rank is not the node's first"), where="w")

    second = {1}
    monkeypatch.setattr("socket.gethostname", lambda: "b")
    assert found() is second
    second = {2}
    with pytest.raises(DataError, match=r"^w: the files have different content on a and b\. Copy the same"):
        found()


def test_a_rank_acts_itself_where_a_rehearsal_leaves_out_the_first_of_its_node() -> None:
    class LastRank(RankGroup):
        def gather_objects(self, value: Any) -> list[Any]:
            return [value] * self.ranks.world_size

    group = LastRank(Ranks(rank=3, world_size=4, local_rank=1, local_world_size=2))
    assert group.from_node_main(lambda: 5, where="w") == 5


def test_what_the_system_says_of_a_file_is_one_line() -> None:
    with pytest.raises(ZerokitError, match=r"^xxx.*: File name too long\. Check its name"):
        RankGroup(Ranks()).together(Path("x" * 300).is_dir)
    with pytest.raises(OSError, match="no file"):
        RankGroup(Ranks()).together(lambda: (_ for _ in ()).throw(OSError("no file")))


def test_the_error_of_the_lowest_rank_is_raised_on_all() -> None:
    class ThreeRanks(RankGroup):
        def gather_objects(self, value: Any) -> list[Any]:
            return [None, DataError("second"), value or DataError("third")]

    group = ThreeRanks(Ranks(2, 3, 2, 3))
    with pytest.raises(DataError, match="second"):
        group.together(lambda: None)


def test_gpus_are_hidden_from_a_run_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deepspeed launcher sets CUDA_VISIBLE_DEVICES for every rank."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    seen: list[str] = []
    assert run_on_all_ranks(lambda group: seen.append(os.environ["CUDA_VISIBLE_DEVICES"])) == 0
    assert seen == [""]


def test_a_host_with_other_packages_is_refused_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        group = RankGroup(Ranks(rank, 2, 0, 1))
        monkeypatch.setattr(group, "gather_objects", lambda own: [own, {**own, "zerokit": "0.0"}])
        with pytest.raises(LaunchError, match=r"^rank 1 on b: has other versions: zerokit 0\.0 \(on a \d"):
            group._refuse_other_versions(["a", "b"])
