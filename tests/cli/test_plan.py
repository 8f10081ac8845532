"""``zerokit plan``: options, errors, exit codes, and the folder that it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Run, refused
from zerokit.planning.report import PlanReport

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
SMALL = ("--tokens", "1M", "--gpu", "h100", "--max-gpus", "2", "--global-batch-size", "8", "--rehearse", "0")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose name is hard to quote, with the config of a small model; a cache of its own."""
    monkeypatch.setattr("zerokit.planning.cache.cache_folder", lambda: tmp_path / "cache")
    folder = tmp_path / "a 'model'\n\"$(x)"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--tokens", "1M", "--gpu", "h1000"), "there is no GPU 'h1000'"),
        (("--tokens", "1M", "--price", "h100"), "--price: 'h100' has no price"),
        (("--tokens", "1M", "--examples", "9", "--mean-tokens", "5"), "contradict each other"),
        (("--tokens", "1M", "--recipe", "r.yaml"), "MODEL and --recipe: contradict each other"),
        (("--tokens", "1M", "--load-in-4bit"), "needs --lora-rank"),
        (("--tokens", "1M", "--gpu", "h100", "--hardware", "h.yaml"), "--gpu and --hardware: contradict"),
        (("--compare", "run.json", "plan.json"), "--compare and MODEL: contradict"),
        (("--tokens", "1M", "--deadline", "24"), "'24' has no unit"),
        (("--tokens", "1M", "--deadline", "0h"), "--deadline: 0 is not positive. Give more than 0"),
        (("--tokens", "1M", "--budget", "0"), "--budget: 0 is not positive. Give more than 0"),
        (("--tokens", "1M", "--budget", "1e12"), "--budget: must be less than 1e+12"),
        (("--tokens", "1M", "--seq-len", "4k,8k"), "--seq-len: several lengths"),
        (("--tokens", "1M", "--seq-len", "4"), "--seq-len: is 4. Give 8 or more"),
        (("--tokens", "many"), "--tokens: 'many' is not a count"),
        (("--tokens", "1M", "--network", "fast"), "'fast' is no network speed"),
        (("--tokens", "1M", "--have", "4090"), "--have"),
        (("--tokens", "1M", "--spot"), "--spot"),
        (("--data", "empty.jsonl"), "empty"),
        (("--no-input",), "Missing option '--tokens'"),
    ],
)
def test_one_line_for_bad_input(
    zerokit: Run, model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(model)
    Path("empty.jsonl").touch()
    assert expected in refused(zerokit, "plan", ".", *words)


def test_writes_a_folder_that_zerokit_check_accepts(zerokit: Run, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    code, out, err = zerokit("plan", model, *SMALL, "-o", folder, "--format", "json")
    assert (code, err) == (0, f"written: {folder}. Start with its README.md\n")
    report = PlanReport.model_validate_json(out)
    assert PlanReport.model_validate_json((folder / "plan.json").read_text()) == report
    best = report.plans[0]
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert recipe["model"] == str(model)
    assert recipe["training"]["per_device_train_batch_size"] == best.micro_batch_size
    words = ("--recipe", folder / "recipe.yaml", "--target", "trainer", "--num-gpus", best.num_gpus)
    code, out, _ = zerokit("check", folder / "ds_config.json", *words)
    assert code == 0
    assert "nothing found" in out
    assert f"--nproc-per-node {best.num_gpus} " in (folder / "launch.sh").read_text()
    # Files of others stay, and nothing is replaced without --force.
    (folder / "mine").touch()
    assert "has files" in refused(zerokit, "plan", model, *SMALL, "-o", folder).replace("the folder ", "")
    assert zerokit("plan", model, *SMALL, "-o", folder, "--force")[0] == 0
    assert (folder / "mine").exists()
    assert not list(tmp_path.glob(".zerokit-plan*"))


def test_verdict_first_and_exit_code_1_where_nothing_meets(zerokit: Run, model: Path) -> None:
    code, out, _ = zerokit("plan", model, *SMALL, "--budget", "0.01")
    assert code == 1
    assert out.startswith("Nothing meets a budget of $0.01.")
    code, out, _ = zerokit("plan", model, *SMALL, "--deadline", "6s")
    assert code == 1
    assert out.startswith("Nothing meets a deadline of 6.0 s.")
    code, out, _ = zerokit("plan", model, *SMALL, "--setup", "0min")
    assert code == 0
    assert out.startswith("Rent 1 x H100-SXM for ")
    command = next(line for line in out.splitlines() if line.startswith("  zerokit plan"))
    assert "--setup 0min" in command


def test_asks_at_a_terminal_for_what_is_missing(
    zerokit: Run, model: Path, answers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    rest = [str(word) for word in SMALL if word not in ("--tokens", "1M")]
    answers("no-such-model\n.\nmany\n1M\n")
    code, out, err = zerokit("plan", *rest)
    assert code == 0
    assert "no-such-model" in err
    assert "'many' is not a count" in err
    assert f"In one line: zerokit plan {' '.join(rest)} . --tokens 1M\n" in err
    assert out.endswith(zerokit("plan", ".", *SMALL)[1])


def test_goals_and_details(zerokit: Run, model: Path) -> None:
    def report(*words: str) -> PlanReport:
        code, out, _ = zerokit("plan", model, *SMALL, *words, "--format", "json")
        assert code == 0
        return PlanReport.model_validate_json(out)

    all_of = ("--gpu", "h100,a100-80", "--max-gpus", "8")
    cheap, fast, detailed = report(), report("--for", "time"), report("--details", *all_of)
    assert cheap.plans[0].cost_usd.mid == min(one.cost_usd for one in cheap.considered)
    assert fast.plans[0].hours.mid == min(one.hours for one in fast.considered)
    assert "--for time" in fast.command
    assert "--details" not in detailed.command
    assert len(detailed.rejected) > len(report(*all_of).rejected)


def test_plans_for_a_card_of_a_file(zerokit: Run, model: Path, tmp_path: Path) -> None:
    card = {"name": "X1", "nominal_gb": 64, "bandwidth_gb_s": 3000, "tflops": {"bf16": 500, "fp32": 50}}
    (tmp_path / "x1.json").write_text(json.dumps({"gpu": card}))
    words = [model, *(word for word in SMALL if word not in ("--gpu", "h100"))]
    words += ["--hardware", tmp_path / "x1.json"]
    assert "Give --price 'X1=USD'" in refused(zerokit, "plan", *words)
    code, out, _ = zerokit("plan", *words, "--price", "X1=3")
    assert (code, out.startswith("Rent 1 x X1 for ")) == (0, True)


def test_ctrl_c_prints_the_best_so_far(zerokit: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zerokit.planning.evaluate import Evaluator

    seconds = Evaluator.seconds

    def interrupted(self: Evaluator, candidate: object, offer: object) -> object:
        if offer.num_gpus == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        return seconds(self, candidate, offer)  # type: ignore[arg-type]

    monkeypatch.setattr(Evaluator, "seconds", interrupted)
    code, out, _ = zerokit("plan", model, *SMALL)
    assert code == 130
    assert out.startswith("Rent 1 x H100-SXM")
    assert "The search was stopped" in out


def test_explains_and_compares(zerokit: Run, model: Path, tmp_path: Path) -> None:
    code, out, _ = zerokit("plan", model, *SMALL, "--explain", "2xH100 stage 3 mbs 1")
    assert code == 0
    assert out.startswith("2 x H100-SXM, ZeRO-3, micro batch 1: ")
    assert "no number of GPUs" in refused(zerokit, "plan", model, *SMALL, "--explain", "?")
    missing = refused(zerokit, "plan", "--compare", tmp_path / "run.json", tmp_path / "plan.json")
    assert "no such file" in missing
