import json
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
ZERO2 = Path(__file__).parents[2] / "ds_configs" / "zero2.json"
ZERO3 = ZERO2.with_name("zero3.json")

RunProcess = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    file = tmp_path / "bad.json"
    file.write_text(
        '{\n  "train_batch_size": 8,\n  "gradient_cliping": 1.0,\n  "zero_optimization": {"stage": 2}\n}\n'
    )
    return file


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    file = tmp_path / "doubtful.json"
    file.write_text('{"train_batch_size": 8, "zero_optimization": {"stage": 2, "sub_group_size": 1e9}}')
    return file


def test_a_good_file(zerokit: Run) -> None:
    assert zerokit("check", ZERO2) == (0, f"{ZERO2}: no problems\n", "")


def test_errors_are_named_with_their_place_and_give_1(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", bad)
    assert (code, err) == (1, "")
    first, summary = out.splitlines()
    assert first.startswith(
        f"{bad}:3 (gradient_cliping): error: unknown key 'gradient_cliping'. Did you mean"
    )
    assert summary == "1 error in 1 file"


def test_warnings_alone_give_0(zerokit: Run, doubtful: Path) -> None:
    code, out, _ = zerokit("check", doubtful)
    assert code == 0
    assert "warning" in out


def test_a_file_that_cannot_be_read_gives_2_and_the_others_are_still_checked(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", "absent.json", bad, "gone.json")
    assert code == 2
    assert "gradient_cliping" in out
    assert [line.split()[2] for line in err.splitlines()] == ["absent.json:", "gone.json:"]


def test_a_syntax_error_gives_2_with_its_line(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"stage": 1,\n}')
    code, _, err = zerokit("check", tmp_path / "a.json")
    assert code == 2
    assert "a.json:3:1: a comma after the last entry" in err


def test_json_is_one_object_of_the_agreed_form(zerokit: Run, bad: Path) -> None:
    code, out, err = zerokit("check", bad, ZERO3, "--format", "json")
    assert (code, err) == (1, "")
    assert json.loads(out) == {
        "files": [
            {
                "file": str(bad),
                "findings": [
                    {
                        "rule": "unknown-key",
                        "severity": "error",
                        "path": "gradient_cliping",
                        "line": 3,
                        "message": "unknown key 'gradient_cliping'",
                        "hint": "Did you mean 'gradient_clipping'?",
                    }
                ],
            },
            {"file": str(ZERO3), "findings": []},
        ]
    }


def test_the_target_decides_who_fills_auto(zerokit: Run) -> None:
    assert zerokit("check", ZERO2, "--target", "trainer")[0] == 0
    code, out, _ = zerokit("check", ZERO2, "--target", "deepspeed")
    assert code == 1
    assert "the Trainer would fill it" in out


def test_the_number_of_gpus_decides_whether_batch_sizes_fit(zerokit: Run, doubtful: Path) -> None:
    assert zerokit("check", doubtful, "--num-gpus", 4)[0] == 0
    assert zerokit("check", doubtful, "--num-gpus", 3)[0] == 1


def test_it_starts_within_350_ms_of_cpu(zerokit_process: RunProcess) -> None:
    zerokit_process("check", ZERO2)  # compiles what is not compiled yet
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert zerokit_process("check", ZERO2).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.35
