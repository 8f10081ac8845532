"""What a script computes from files is the same rehearsed as real, to the last bit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.rehearsal.commands import SCRIPTS, rehearse
from tests.validation.rehearsal.local_inputs import write_model_config, write_text_dataset, write_tokenizer
from zerokit.distributed.extensions import own_folder


def checksums(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("checksum ")]


@pytest.mark.distributed
def test_a_script_computes_the_same_rehearsed_as_real(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model")
    write_model_config(tmp_path / "model", architecture="llama-2-7b")
    write_text_dataset(tmp_path / "data")
    extensions = {"TORCH_EXTENSIONS_DIR": str(own_folder())}  # where other tests have them compiled
    environment = {**os.environ, **extensions, "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
    environment["OMP_NUM_THREADS"] = "1"  # as torchrun gives each of eight ranks: sums depend on it
    real = processes.checked([sys.executable, SCRIPTS / "host_truth.py", tmp_path], env=environment)
    expected = checksums(real)
    assert len(expected) > 90
    options = ("--num-gpus", 8, "--no-advise", "--steps", 3, "--rank", 7)
    rehearsed = rehearse(*options, SCRIPTS / "host_truth.py", tmp_path, cwd=tmp_path)
    assert rehearsed.code == 0, rehearsed.err[-500:]
    assert checksums(rehearsed.out) == expected


def test_no_data_is_lost_beside_made_up_values(tmp_path: Path) -> None:
    rehearsed = rehearse(
        *("--num-gpus", 8, "--no-advise", "--rank", 0, "--steps", 0, SCRIPTS / "host_data.py"),
        cwd=tmp_path,
        forked=True,
    )
    assert rehearsed.out.count(": kept") == 15, rehearsed.out
    assert "LOST" not in rehearsed.out


def test_what_nobody_wrote_takes_no_memory_of_this_machine(tmp_path: Path) -> None:
    operators = ("a gpu's zeros of integers", "a gpu's range", "a gpu's random integers", "add_", "ones_like")
    rehearsed = rehearse(
        *("--num-gpus", 1, "--no-advise", "--steps", 0, SCRIPTS / "host_memory.py", *operators),
        cwd=tmp_path,
        forked=True,
    )
    assert "\n0 make never-written memory resident" in "\n" + rehearsed.out, rehearsed.out + rehearsed.err


def test_many_experts_share_a_long_sequence(tmp_path: Path) -> None:
    (tmp_path / "routes.py").write_text(
        "import torch\n"
        "chosen = torch.randn(8192, 128, device='cuda').topk(8).indices\n"
        "mask = torch.nn.functional.one_hot(chosen, 128).permute(2, 1, 0)\n"  # as transformers 4 has it
        "print('rows of an expert', *{torch.where(mask[expert])[0].numel() for expert in range(128)})\n"
    )
    rehearsed = rehearse("--num-gpus", 1, "--steps", 0, "routes.py", cwd=tmp_path, forked=True)
    assert "rows of an expert 512\n" in rehearsed.out, rehearsed.out + rehearsed.err


def test_views_and_host_kernels_use_the_memory_they_should(tmp_path: Path) -> None:
    script = SCRIPTS / "shared_memory.py"
    rehearsed = rehearse("--num-gpus", 2, "--rank", 0, "--no-advise", script, cwd=tmp_path, forked=True)
    assert "all as on the cluster" in rehearsed.out, rehearsed.err[-2000:]
