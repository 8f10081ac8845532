"""Stand-ins for packages that are compiled with CUDA's toolkit: who finds them, and what they allocate."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.rehearsal.attention_questions import answer
from tests.rehearsal.commands import rehearse
from zerokit.rehearsal.stand_ins.cuda_extensions import _toolkit
from zerokit.rehearsal.stand_ins.needed_packages import Needed

NAMES = {
    "apex": frozenset({"apex", "amp_C"}),
    "nv-grouped-gemm": frozenset({"grouped_gemm", "nv-grouped-gemm"}),
}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import apex", 1),
        ("import torch, apex.optimizers", 1),
        ("\nfrom apex.normalization import (\n    FusedRMSNorm,\n)", 2),
        ("import amp_C", 1),
        ("if torch.cuda.is_bf16_supported():\n    import apex", 2),
        ("try:\n    import apex\nexcept ImportError:\n    raise RuntimeError('install it')", 2),
        ("try:\n    import apex\nexcept ImportError:\n    print('install it')\n    exit(1)", 2),
        ("try:\n    import apex\nexcept ValueError:\n    apex = None", 2),
        ("try:\n    import apex\nfinally:\n    print('done')", 2),
        ("try:\n    import apex\nexcept ImportError:\n    apex = None", None),
        ("try:\n    import apex\nexcept:\n    apex = None", None),
        ("try:\n    import other\nexcept ImportError:\n    import apex", None),
        ("with contextlib.suppress(ImportError):\n    import apex", None),
        ("if is_apex_available():\n    import apex", None),
        ("if args.use_apex:\n    import apex", None),
        ("def train():\n    import apex", None),
        ("from .apex import train", None),
        ("import apexes", None),
        ("this is no Python", None),
    ],
)
def test_a_script_needs_what_it_imports_and_does_not_do_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    assert Needed(NAMES).by("apex") == (line and f"train.py:{line} imports it")
    assert Needed(NAMES).by("nv-grouped-gemm") is None


@pytest.mark.parametrize(
    ("script", "needs_it"),
    [
        ("import model", True),
        ("from model import layers", True),
        ("from model.layers import norm", True),
        ("from outside import norm", True),
        ("try:\n    import model\nexcept ImportError:\n    model = None", False),
        ("def train():\n    import model", False),
        ("import target", False),
    ],
)
def test_files_that_it_surely_imports_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, needs_it: bool
) -> None:
    files = {
        "src/train.py": script,
        "src/model/__init__.py": "from . import layers",
        "src/model/layers.py": "from .norms import norm",
        "src/model/norms.py": "import apex",
        "elsewhere/outside.py": "import apex",
        "target/target.py": "import apex",
        "target/target-1.0.dist-info/RECORD": "target.py,,",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["src/train.py"])
    needed = Needed(NAMES)
    assert needed.by("apex") is None or needs_it
    for folder in ("elsewhere", "target"):
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert (needed.by("apex") is not None) == needs_it


def test_what_is_asked_before_the_script_is_known_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import apex", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zerokit.rehearsal.worker.run"])
    needed = Needed(NAMES)
    assert needed.by("apex") is None
    monkeypatch.setattr(sys, "argv", ["train.py"])
    assert needed.by("apex") == "train.py:1 imports it"


@pytest.mark.parametrize(
    ("line", "is_asked_for"),
    [
        ("apex", True),
        ("apex>=0.1  # fused optimizers", True),
        ("git+https://github.com/NVIDIA/apex.git@24.04", True),
        ("nv_grouped_gemm==1.1.4", True),
        ("git+https://github.com/fanshiqing/grouped_gemm@main", True),
        ("# apex", False),
        ("apex-legends", False),
        ("pyapex", False),
    ],
)
def test_what_its_requirements_name_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, is_asked_for: bool
) -> None:
    (tmp_path / "requirements.txt").write_text(f"torch\n{line}\n", encoding="utf-8")
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    needed = Needed(NAMES)
    name = "nv-grouped-gemm" if "grouped" in line else "apex"
    place = f"{tmp_path.name}/requirements.txt:2 asks for it"
    assert needed.by(name) == (place if is_asked_for else None)


def test_a_package_is_found_once_the_script_cannot_do_without_it() -> None:
    found = answer("packages_found")
    assert found["before"] == [False, None, False]
    assert not found["caught"]
    assert found["after"] == [True, "0.1", True]
    assert "stands in for apex 0.1, and the script fails at what that has" in found["limit"]
    assert "apex.contrib" in found["limit"]
    assert "cannot stand in for transformer_engine, which is compiled with CUDA's toolkit" in found["refused"]
    taken, lacking = found["said"]  # what was caught before is there now
    assert taken.startswith("apex 0.1 is not installed here and was stood in for, since ")
    assert "compiled_packages_questions.py:" in taken
    assert lacking.startswith("apex.contrib may be there on the cluster, and its stand-in is not (")


def test_a_script_trains_with_what_it_imports_and_goes_without_what_it_catches(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "xformers" / "__init__.py"  # which refuses releases of flash-attn
    library.parent.mkdir(parents=True)
    library.write_text("from importlib.util import find_spec\nfound = find_spec('flash_attn')", "utf-8")
    (tmp_path / "train.py").write_text(
        dedent("""
            import sys, torch
            sys.path.append(f"{sys.path[0]}/site-packages")
            import xformers, flash_attn
            assert xformers.found is None
            try:
                import grouped_gemm
            except ImportError:
                grouped_gemm = None
            from apex.normalization import FusedRMSNorm
            from apex.optimizers import FusedAdam

            model = torch.nn.Sequential(FusedRMSNorm(64), torch.nn.Linear(64, 1)).cuda()
            optimizer = FusedAdam(model.parameters())
            assert grouped_gemm is None
            while True:
                model(torch.ones(8, 64, device="cuda")).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        """),
        encoding="utf-8",
    )
    rehearsed = rehearse("--num-gpus", 1, "--no-advise", "--format", "json", "train.py", cwd=tmp_path)
    assert rehearsed.code == 0, rehearsed.err
    taken, without = [line for line in rehearsed.report["warnings"] if "stood in for" in line]
    assert taken.startswith(
        "apex 0.1 is not installed here and was stood in for, since train.py:10 imports it"
    )
    assert without.startswith(
        "nv-grouped-gemm is not installed here, and the script goes on without (train.py:7)"
    )


def test_norms_and_losses_of_flash_attentions_csrc_allocate_what_the_compiled_ones_do() -> None:
    found = answer("flash_attention_csrc")
    rows, numbers = 1000, 1000 * 256
    assert found["plain"] == [True, False, False, True, True]  # no sum, no mask
    assert found["of plain"] == numbers * 2 + 2 * rows * 4
    assert found["of summed"] == 2 * numbers * 2 + numbers + 2 * rows * 4
    assert found["of gradients"] == 2 * numbers * 2 + 2 * 256 * 4
    assert found["losses"] == [[100], "torch.float32", "torch.float32"]
    assert found["in place"] == [True, False]
    assert found["rotary"] == 0
    differing, shaped, placed = found["refused"]
    assert "torch.bfloat16" in differing
    assert "shapes" in shaped
    assert placed == "x2 must be on CUDA"


def test_grouped_products_keep_rows_weights_and_the_order_alone() -> None:
    found = answer("grouped_products")
    rows = 96 * 2
    assert found["order"] == rows * 64 * 2 + rows * 4 + 5 * rows * 4  # and one workspace
    assert found["product"] == rows * 128 * 2
    assert found["sum"] == 96 * 128 * 2
    assert found["flops"] == 2 * rows * 64 * 128
    assert found["all flops"] == 3 * found["flops"]
    assert found["gradients"] == [[96, 64], [4, 64, 128], [96, 2]]
    assert found["left"] == 2 * (96 * 64 + 4 * 64 * 128) + 4 * rows
    assert found["transposed"] == [rows, 128]
    assert found["version"] == "1.1.4.post8"
    assert all("batch_sizes must be" in line for line in found["refused"])
    assert len(found["refused"]) == 2


def test_norms_of_apex_keep_what_apex_keeps() -> None:
    found = answer("apex_norms")
    rows, numbers, parts = 1000, 1000 * 256, 16 * 256 * 4
    out, figure = numbers * 2, rows * 4
    assert found["layer"][0] == out + 2 * figure
    assert found["rms"][0] == out + figure
    assert found["plain"][0] == out + figure
    assert found["efficient"][0] == figure  # the output is kept, the input let go of
    assert found["mixed"][0] == 2 * out + figure
    assert [found[name][2] for name in ("layer", "mixed")] == ["torch.bfloat16", "torch.float32"]
    assert found["rms"][1] == out + 256 * 2 + parts
    assert found["layer"][1] == out + 2 * 256 * 2 + 2 * parts
    assert found["cast"] == "torch.bfloat16"
    assert found["on the host"] == [2, 8]


def test_optimizers_of_apex_have_its_states() -> None:
    found = answer("apex_optimizers")
    numbers = 10**6
    in_half_and_float, freed = 2 * numbers * 4 + numbers * 2, True
    assert found["adam"] == [2 * numbers * 4, in_half_and_float, freed]
    assert found["lamb"][0] == 2 * numbers * 2
    assert found["sgd"] == [numbers * 4, numbers * 4, False]
    assert found["sgd of another dtype"][0] == 0
    assert found["norms"] == [[1], [2]]
    assert "expected 2 lists" in found["refused"]


def test_rotary_embeddings_of_apex_keep_the_angles_alone() -> None:
    found = answer("apex_rotary")
    assert found == {"kept": 50 * 2 * 4 * 64 * 2, "is of one piece": True, "grad": [50, 2, 4, 64]}


def test_weight_gradients_of_apex_are_added_in_their_place() -> None:
    found = answer("apex_weight_gradients")
    assert found["bytes"] == 0
    assert found["flops"] == 2 * 80 * 64 * 32
    assert "not torch.float32" in found["refused"]


def test_their_kernels_take_time_on_the_clock() -> None:
    told = answer("kernels_on_the_clock")
    assert told["multi_tensor_adam"] == [
        1000 * 4 * (1 + 2 * 3)
    ]  # gradients are read, the others written, too
    assert told["apply_rotary"] == [4 * 10 * 2 * 32 * 4 + 2 * 10 * 32 * 4]
    assert told["cuApplyLayerNorm"] == [3 * 10 * 64 * 4 + 64 * 4]
    assert told["wgrad_gemm_accum"] == [32, 64, 10, "bfloat16"]


def test_megatrons_softmaxes_stand_in_for_what_it_compiles() -> None:
    found = answer("megatron_softmax")
    assert re.fullmatch(r"\d+\.\d+", found["release"])
    assert found["kept"] == 8 * 64 * 64 * 2
    assert found["in place"] == [True, True]
    assert found["shape"] == [2, 4, 64, 64]
    assert found["blocks"] == [16, 8, 4]


def test_a_compiler_that_is_not_here_tells_its_release_and_compiles_nothing(tmp_path: Path) -> None:
    nvcc = _toolkit(tmp_path / "cuda", "12.8") / "bin" / "nvcc"
    told = subprocess.run([nvcc, "-V"], capture_output=True, text=True)
    words = told.stdout.split()
    assert words[words.index("release") + 1] == "12.8,"
    refused = subprocess.run([nvcc, "-c", "kernel.cu"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "compiles nothing for the GPU" in refused.stderr
