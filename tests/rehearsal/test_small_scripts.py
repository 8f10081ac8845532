"""Small scripts through the command: steps without an engine, names of blocks, a step by hand."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

import zerokit
from tests.combinations import REST
from tests.rehearsal import forked_worker
from tests.rehearsal.commands import SCRIPTS, Rehearsed, rehearse
from tests.tiny import REPOSITORY
from zerokit.errors import ZerokitError
from zerokit.hardware.costs.figures import figures
from zerokit.rehearsal.parent import processes as parent_processes

pytestmark = pytest.mark.rehearsal

MIB = 2**20
MATRICES = 16 * MIB
WORKSPACE = 32 * MIB
"""cuBLAS's, of which the thread of the backward pass has its own."""
INPUTS = MIB // 2
BLOCK = 512
"""What the smallest tensor takes."""


def _run(way: str, *words: object, iterations: int, cwd: Path) -> Rehearsed:
    given = ("--format", "json", "--num-gpus", 1, "--gpu", "H100", *words, SCRIPTS / "plain_optimizers.py")
    return rehearse(*given, way, iterations, cwd=cwd, forked=True)


@pytest.mark.parametrize(
    ("way", "states"),
    [
        # All gradients are there at its end, and AdamW has two counters of its own.
        ("several", MATRICES + MATRICES // 2 + MATRICES + 2 * BLOCK),
        ("container", MATRICES),  # the gradients
        ("in_backward", BLOCK),  # the loss, as the backward pass has not returned
        ("normalizing", MATRICES),  # the gradients
    ],
)
def test_a_step_is_what_updates_the_parameters_once(way: str, states: int, tmp_path: Path) -> None:
    done = _run(way, iterations=9, cwd=tmp_path)
    report = done.report
    assert report["steps"] == 2
    assert report["run"]["stopped_after_steps"] == 2
    held = [one["steady_bytes"] for one in report["per_step"]]
    assert way != "several" or held[0] == held[1], "a step ends with the last of its optimizers"
    assert way != "container" or report["per_step"][1]["flops"] > 0, "a container and what it holds step once"
    assert max(held) == MATRICES + states + INPUTS + 2 * WORKSPACE


def test_a_script_that_updates_parameters_itself_is_warned_of_steps_that_are_not_seen(tmp_path: Path) -> None:
    report = _run("own_update", iterations=3, cwd=tmp_path).report
    assert report["steps"] == 0
    (mistake,) = (line for line in report["mistakes"] if "no optimizer step was seen" in line)
    assert "not updates that a script makes itself" in mistake
    assert report["warnings"].count(mistake) == 1
    others = _run("gradients_alone", iterations=3, cwd=tmp_path).report
    assert (others["steps"], others["mistakes"]) == (0, [])
    assert any("before the script ended" in line for line in others["warnings"])


@pytest.mark.parametrize(("size", "batch"), [(8, 2), (2, 8)])
def test_ranks_that_share_a_sequence_are_not_counted_as_data_parallel(size: int, batch: int, tmp_path: Path) -> None:
    changes = (f"train_batch_size={batch}", "gradient_accumulation_steps=1")
    given = [word for change in changes for word in ("--ds-config-override", change)]
    given += ["--num-gpus", 8, "--format", "json", SCRIPTS / "sequence_parallel.py", "--size", size]
    report = rehearse(*given, cwd=tmp_path, forked=True).report
    assert report["run"]["ds_config"]["train_batch_size"] == batch
    assert [one for one in report["ds_config_findings"] if one["severity"] == "error"] == []


UNEVEN = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
mine, expected = list(range(10))[rank::world], int(sys.argv[2])
if sys.argv[1] == "objects":
    parts = [None] * world if rank == 0 else None
    dist.gather_object(mine, parts, dst=0)
    total = sum(map(len, parts)) if rank == 0 else expected
else:
    count = torch.tensor([len(mine)], device="cuda")
    dist.all_reduce(count)
    total = int(count)
if total != expected:
    raise RuntimeError(f"{total} results of {expected} items")
weight = torch.nn.Parameter(torch.ones(64, device="cuda"))
optimizer = torch.optim.AdamW([weight])
for _ in range(2):
    weight.sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("how", ["objects", "counts"])
@pytest.mark.parametrize("expected", [10, 11])
def test_what_ranks_hold_of_uneven_shards_is_their_own(how: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNEVEN, encoding="utf-8")
    given = ("--num-gpus", 4, "--format", "json", "train.py", how, expected)
    done = rehearse(*given, cwd=tmp_path, forked=True)
    assert done.err.count("train.py fails on values of ranks that were not rehearsed: again, with all 4") == 1
    if expected == 10:  # as on four ranks of gloo
        assert done.report["steps"] == 2
        assert "Traceback" not in done.err
    else:
        assert done.code == 2
        assert "RuntimeError: 10 results of 11 items" in done.err


ENDS = """
import sys
from zerokit.distributed.group import leave, run_on_all_ranks
from zerokit.errors import ZerokitError

def main(group):
    group.gather_objects(group.ranks.rank)
    if sys.argv[1] == "zerokit":
        raise ZerokitError("sequences are too long", where="--task.seq_len")
    sys.exit(2)

leave(run_on_all_ranks(main))
"""


@pytest.mark.parametrize("ended_by", ["zerokit", "script"])
def test_an_error_of_zerokit_rests_on_no_other_rank(ended_by: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDS, encoding="utf-8")
    done = rehearse("--num-gpus", 4, "train.py", ended_by, cwd=tmp_path, forked=True)
    assert done.code == 2
    assert done.err.count("again, with all 4 ranks") == (ended_by == "script")
    assert done.err.count("error: --task.seq_len: sequences are too long") == (ended_by == "zerokit")


def test_python_gets_what_ends_a_rehearsal_as_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    raised = "ZerokitError('no data', where='mine.jsonl', hint='Add lines')"
    code = f"from zerokit.errors import ZerokitError\nraise {raised}"
    (tmp_path / "train.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(forked_worker.SOCKET, forked_worker.server())
    monkeypatch.setattr(parent_processes, "WORKER", forked_worker.__name__)
    with pytest.raises(ZerokitError) as caught:
        zerokit.rehearse("train.py", num_gpus=1)
    assert (caught.value.message, caught.value.where, caught.value.hint) == ("no data", "mine.jsonl", "Add lines")
    assert capfd.readouterr().err.count("zerokit: error: mine.jsonl: no data. Add lines\n") == 1


def test_inputs_of_checkpointed_layers_go_as_soon_as_they_were_computed_again(tmp_path: Path) -> None:
    report = _run("checkpointed", iterations=9, cwd=tmp_path).report
    assert report["steps"] == 2
    hidden = 64 * MIB
    # Inputs of four layers and the output of the last; then it is computed again, from a gradient to another.
    held = MATRICES + INPUTS + 2 * WORKSPACE
    assert held + 5 * hidden < report["device"]["peak_bytes"] < held + 7.5 * hidden


@pytest.mark.parametrize("stage", [2, pytest.param(3, marks=REST)])
def test_buckets_of_gradients_are_called_by_the_key_that_sizes_them(stage: int, tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 2, "--gpu", "H100", SCRIPTS / "one_bucket.py", stage)
    blocks = rehearse(*words, cwd=tmp_path, forked=True).report["device"]["largest_blocks_at_peak"]
    (bucket,) = (block for block in blocks if block["name"] == "reduce_bucket_size")
    assert bucket["shape"] == [50_000_000]
    assert bucket["category"] == "buffers"


def test_what_a_rank_holds_of_a_sharded_tensor_is_called_what_the_tensor_is(tmp_path: Path) -> None:
    words = ("--format", "json", "--num-gpus", 2, "--gpu", "H100", SCRIPTS / "fully_sharded.py")
    device = rehearse(*words, cwd=tmp_path, forked=True).report["device"]
    share = 4 * 4 * 1024 * 1024 // 2
    steps_of_adam = 4 * 512
    assert device["at_peak"]["optimizer_states"] == 2 * share + steps_of_adam
    assert device["at_peak"]["parameters"] >= share


PACKAGES_ASIDE = {
    # As it would be if the method had another name, and as if the module had.
    "peft": {"__init__.py": "", "peft_model.py": "class PeftModel: ...\n"},
    "accelerate": {"__init__.py": ""},
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    for package, files in PACKAGES_ASIDE.items():
        (tmp_path / package).mkdir()
        for name, text in files.items():
            (tmp_path / package / name).write_text(text)
    script = tmp_path / "train.py"
    script.write_text(
        "import accelerate, peft.peft_model, torch\ntorch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()\n"
    )
    return script


def test_a_missing_name_is_a_warning_with_its_package_and_its_purpose(script: Path) -> None:
    rehearsed = rehearse("--num-gpus", 2, "--rank", 0, "--format", "json", script, cwd=script.parent)
    assert rehearsed.code == 0, rehearsed.err
    found = [line for line in rehearsed.report["warnings"] if "went on without" in line]
    assert (
        f"peft {version('peft')} has no peft.peft_model.PeftModel.save_pretrained, which zerokit replaces to "
        "write nothing and note it: the rehearsal went on without it"
    ) in found
    assert any(
        f"accelerate {version('accelerate')} has no accelerate.big_modeling.dispatch_model" in line for line in found
    )
    assert not any("torch" in line.split(" has no ")[0] for line in found)


def test_the_step_worked_out_by_hand_is_the_rehearsed_one(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "explanation" / "how-time-is-predicted.md").read_text(encoding="utf-8")
    section = page.split("## One step by hand\n")[1].split("\n## ")[0]
    *parts, whole = [float(found) for found in re.findall(r"\| (\d\.\d{3}) \|$", section, re.MULTILINE)]
    forward, backward, all_reduce, sgd, start = parts
    options = ("--time", "--gpu", "H100-SXM", "--num-gpus", 8, "--no-advise", "--format", "json")
    time = rehearse(*options, SCRIPTS / "by_hand.py", cwd=tmp_path, forked=True).report["time"]
    kernels = {kernel["name"]: 1e3 * kernel["seconds"] for kernel in time["kernels"]}
    by_hand = {"aten::mm": forward + backward, "all_reduce": all_reduce, "aten::add": sgd}
    assert kernels == pytest.approx(by_hand, abs=0.001)
    assert 1e3 * time["breakdown"]["launch"] == pytest.approx(start, abs=0.0006)
    assert 1e3 * time["step_seconds"] == pytest.approx(whole, abs=0.0006)
    assert sum(parts) == pytest.approx(whole, abs=0.0011)


@pytest.mark.parametrize(("first", "blocks"), [("pass", True), ("torch.empty(1, device='cuda')", False)])
def test_a_host_waits_for_each_kernel_if_it_is_told_so_in_time(first: str, blocks: bool, tmp_path: Path) -> None:
    script = tmp_path / "blocks.py"
    sets = f'import os, torch\n{first}\nos.environ["CUDA_LAUNCH_BLOCKING"] = "1"\n'
    script.write_text(sets + (SCRIPTS / "by_hand.py").read_text(encoding="utf-8"), encoding="utf-8")
    options = ("--time", "--gpu", "H100-SXM", "--num-gpus", 8, "--no-advise", "--format", "json")
    report = rehearse(*options, script, cwd=tmp_path, forked=True).report
    assert sum(line.startswith("CUDA_LAUNCH_BLOCKING is set") for line in report["warnings"]) == blocks
    # Launches of four kernels, one of them a collective: none is hidden behind the one before.
    launch = figures()["launch"]["seconds"]
    assert (report["time"]["breakdown"]["launch"] > 3 * launch["kernel"] + launch["collective"]) == blocks
