"""What offload to NVMe takes of a machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from zerokit.distributed.group import RankGroup
from zerokit.distributed.nvme import check_nvme, clear_swap_folder, has_async_io, locked_swap_folders, uses_nvme
from zerokit.distributed.ranks import Ranks
from zerokit.documents import dotted
from zerokit.errors import ConfigError, ZerokitError

pytestmark = pytest.mark.torch


swap_folders = partial(locked_swap_folders, RankGroup(Ranks()))


def on_nvme(section: str, folder: object, stage: int = 3) -> dict[str, Any]:
    offload = {"device": "nvme", "nvme_path": folder}
    return {"stage": stage, section: offload}


def test_it_is_used_in_stage_3_alone() -> None:
    assert uses_nvme(on_nvme("offload_optimizer", "/nvme"))
    assert not uses_nvme(on_nvme("offload_optimizer", "/nvme", stage=2))
    assert not uses_nvme({"stage": 3, "offload_param": {"device": "cpu"}})
    assert not uses_nvme({})


@pytest.mark.parametrize("section", ["offload_param", "offload_optimizer"])
def test_without_libaio_it_is_refused(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.ops.op_builder import AsyncIOBuilder
    from deepspeed.ops.op_builder.builder import OpBuilder

    monkeypatch.setattr(OpBuilder, "_loaded_ops", {})
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda *_, **__: False)
    with pytest.raises(ConfigError, match=rf"^zero_optimization.{section}: offload to nvme needs libaio"):
        check_nvme(on_nvme(section, str(tmp_path)), dotted)
    monkeypatch.setattr(AsyncIOBuilder, "is_compatible", lambda *_, **__: True)
    check_nvme(on_nvme(section, str(tmp_path)), dotted)
    with pytest.raises(ConfigError, match=r"nvme_path: '.*none' is no folder"):
        check_nvme(on_nvme(section, str(tmp_path / "none")), dotted)


def test_two_runs_do_not_swap_to_one_folder(tmp_path: Path) -> None:
    optimizer = on_nvme("offload_optimizer", f"{tmp_path}/../{tmp_path.name}/")  # written in another way
    both = {**on_nvme("offload_param", str(tmp_path)), **optimizer}
    with swap_folders(both, dotted):
        says = r"^zero_optimization.offload_optimizer.nvme_path: another run swaps to '"
        with pytest.raises(ConfigError, match=says), swap_folders(on_nvme("offload_optimizer", str(tmp_path)), dotted):
            pass
        (tmp_path / "other").mkdir()
        with swap_folders(on_nvme("offload_optimizer", str(tmp_path / "other")), dotted):
            pass
    with swap_folders(both, dotted):
        pass


def test_what_is_loaded_need_not_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder

    monkeypatch.setattr(OpBuilder, "_loaded_ops", {"async_io": object()})
    monkeypatch.setenv("PATH", "")
    assert has_async_io()


def test_what_an_earlier_run_has_left_is_cleared_of_a_rank_alone(tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / "zero_stage_3" / "optimizer" / f"rank{rank}").mkdir(parents=True)
    clear_swap_folder(on_nvme("offload_param", str(tmp_path)), 1)
    assert len(list(tmp_path.glob("*/*/rank*"))) == 2
    clear_swap_folder(on_nvme("offload_optimizer", str(tmp_path)), 1)
    assert [path.name for path in tmp_path.glob("*/*/rank*")] == ["rank0"]


@pytest.mark.parametrize("name", ["zero_stage_3", "zero_stage_3/optimizer", "zero_stage_3/optimizer/rank0"])
def test_a_link_where_deepspeed_swaps_to_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "home/optimizer/rank0").mkdir(parents=True)
    link = tmp_path / "nvme" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "home")
    zero = on_nvme("offload_optimizer", str(tmp_path / "nvme"))
    with pytest.raises(ConfigError, match=r"nvme_path: '.*' is a link"), swap_folders(zero, dotted):
        pass


def test_the_lock_of_a_swap_folder_is_no_link(tmp_path: Path) -> None:
    zero = on_nvme("offload_optimizer", str(tmp_path))
    with swap_folders(zero, dotted):
        (lock,) = tmp_path.iterdir()
    lock.unlink()
    (tmp_path / "theirs").write_text("theirs")
    lock.symlink_to("theirs")
    with pytest.raises(ZerokitError, match="is a link"), swap_folders(zero, dotted):
        pass
    assert (tmp_path / "theirs").read_text() == "theirs"
