import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import refused

Run = Callable[..., tuple[int, str, str]]

LEFT = """{
  "_comment": "a",
  "gradient_clipping": 1.0,
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "cpu_offload": true}
}"""
SAME = """{
  "zero_optimization": {"offload_optimizer": {"device": "cpu"}, "stage": 2, "reduce_bucket_size": 500000000}
}"""
OTHER = """{
  "zero_optimization": {"stage": 2, "sub_group_size": 5},
  "gradient_clipping": 0.5
}"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    texts = {"left": LEFT, "same": SAME, "other": OTHER}
    for name, text in texts.items():
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path / "left.json", tmp_path / "same.json", tmp_path / "other.json"


def test_equal_in_effect_is_0(zerokit: Run, files: tuple[Path, ...]) -> None:
    left, same, _ = files
    assert zerokit("diff", left, same) == (0, f"{left} and {same} do the same\n", "")


def test_different_is_1_and_names_each_key(zerokit: Run, files: tuple[Path, ...]) -> None:
    left, _, other = files
    code, out, err = zerokit("diff", left, other)
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert lines[0].split() == ["key", str(left), str(other)]
    assert ["gradient_clipping", "1.0", "0.5"] in [line.split() for line in lines]
    offload = ["zero_optimization.offload_optimizer.device", '"cpu"', "(absent)"]
    assert offload in [line.split() for line in lines]
    assert lines[-1].startswith("no effect: zero_optimization.sub_group_size: it acts in")


def test_what_has_no_effect_is_told_of_keys_that_are_written(zerokit: Run, tmp_path: Path) -> None:
    for name, zero in (("a", {"stage": 2, "offload_param": {"device": "cpu"}}), ("b", {"stage": 3})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"zero_optimization": zero}))
    _, out, _ = zerokit("diff", tmp_path / "a.json", tmp_path / "b.json")
    idle = [line.split(":")[1].strip() for line in out.splitlines() if line.startswith("no effect")]
    assert idle == ["zero_optimization.offload_param.device"]


def test_as_json(zerokit: Run, files: tuple[Path, ...]) -> None:
    left, same, other = files
    code, out, err = zerokit("diff", left, other, "--format", "json")
    data = json.loads(out)
    assert (code, err, data["equal"]) == (1, "", False)
    found = {one["path"]: one for one in data["differences"]}
    assert found["gradient_clipping"]["a"] == {"value": 1.0, "given": "set"}
    assert found["zero_optimization.offload_optimizer.device"]["b"] == {"value": None, "given": "absent"}
    assert found["zero_optimization.sub_group_size"]["without_effect"]
    code, out, _ = zerokit("diff", left, same, "--format", "json")
    assert (code, json.loads(out)["equal"], json.loads(out)["differences"]) == (0, True, [])


def test_batch_sizes_by_the_number_of_gpus(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}')
    (tmp_path / "b.json").write_text('{"train_micro_batch_size_per_gpu": 2}')
    assert zerokit("diff", tmp_path / "a.json", tmp_path / "b.json")[0] == 1
    assert zerokit("diff", tmp_path / "a.json", tmp_path / "b.json", "--num-gpus", 4)[0] == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"zero_optimization": {"stag": 2}}'])
def test_unusable_is_2(zerokit: Run, files: tuple[Path, ...], tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    assert "bad.json" in refused(zerokit, "diff", files[0], tmp_path / "bad.json")


def test_comments_and_what_deepspeed_passes_over_do_not_end_it(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonc").write_text('// the usual\n{"gradient_cliping": 1.0, "stage": 2, /* x */}')
    (tmp_path / "b.json").write_text('{"zero_optimization": {"stage": 2},}')
    code, out, err = zerokit("diff", tmp_path / "a.jsonc", tmp_path / "b.json")
    assert code == 1
    assert "zero_optimization.stage  0 (default)" in out
    assert "a.jsonc:2 (gradient_cliping): DeepSpeed does not read it. Did you mean 'gradient_clipping'?" in err
    assert "a.jsonc:2 (stage): DeepSpeed does not read it" in err
