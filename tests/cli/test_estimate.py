from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest

from tests.cli.conftest import refused
from tests.tiny import REPOSITORY
from zerokit.choices import OptimizerKind
from zerokit.estimation.fit import Fit
from zerokit.estimation.table import _verdicts
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.reporting.verdicts import Verdict, host_fit
from zerokit.units import GIB

Run = Callable[..., tuple[int, str, str]]

MODEL = "qwen2.5-0.5b"
ONE = ["estimate", MODEL, "--num-gpus", 8, "--zero-stage", 2, "--micro-batch-size", 1, "--seq-len", 512]


def data_of(zerokit: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = zerokit(*arguments, "--format", "json")
    assert (code, err) == (0, "")
    data: dict[str, Any] = json.loads(out)
    return data


def test_the_json_has_the_keys_of_the_contract(zerokit: Run) -> None:
    data = data_of(zerokit, *ONE)
    contract = {
        "": {"model", "world_size", "zero_stage", "model_states", "device", "host", "nvme"},
        "model": {"name", "num_parameters", "num_trainable_parameters"},
        "model_states": {"parameters_bytes", "gradients_bytes", "optimizer_states_bytes"},
        "device": {"steady_bytes", "peak_bytes", "peak_phase", "components"},
        "host": {"per_rank_bytes", "per_node_bytes", "pinned_bytes"},
        "nvme": {"per_node_bytes"},
    }
    for section, keys in contract.items():
        assert keys <= (data[section] if section else data).keys()
    for component in data["device"]["components"]:
        assert {"name", "bytes", "phase", "formula", "source"} <= component.keys()
    assert data["model"]["num_parameters"] == 494_032_768
    assert (data["world_size"], data["zero_stage"]) == (8, 2)
    assert data["model_states"] == {
        "parameters_bytes": 2 * 494_032_768,
        "gradients_bytes": 2 * 494_032_768 // 8,
        "optimizer_states_bytes": 12 * 494_032_768 // 8,
    }
    assert data["activations_counted"] is True


def test_a_sweep_is_a_list_of_the_single_answers(zerokit: Run) -> None:
    several = [0, 1, 2, 3]
    command = ["estimate", MODEL, "--num-gpus", "2,8", "--seq-len", 256, "--micro-batch-size", 2]
    swept = data_of(zerokit, *command, "--zero-stage", "0,1,2,3")["sweep"]
    singles = [
        data_of(
            zerokit, "estimate", MODEL, "--num-gpus", gpus, "--seq-len", 256, "--micro-batch-size", 2,
            "--zero-stage", stage,
        )
        for stage in several
        for gpus in (2, 8)
    ]  # fmt: skip
    assert swept == singles


def test_a_sweep_is_one_table(zerokit: Run) -> None:
    command = ["estimate", MODEL, "--num-gpus", 8, "--zero-stage", "0,1,2,3", "--seq-len", "256, 512"]
    code, out, _ = zerokit(*command, "--gpu", "A100-40")
    assert code == 0
    rows = re.findall(r"^ +([0-3]) +(256|512) ", out, re.MULTILINE)
    assert len(rows) == 8
    assert "8 of 8 settings fit a GPU of 39.49 GiB" in out


@pytest.mark.slow
def test_long_sequences_among_ranks_are_named_and_the_longest_is_found(zerokit: Run) -> None:
    command = ["estimate", MODEL, "--num-gpus", 8, "--zero-stage", 3, "--sequence-parallel", 2, "--seq-len", "1M"]
    command += ["--gradient-checkpointing", "--chunked-loss", "--tiled-mlp", "--activation-offloading"]
    code, out, _ = zerokit(*command, "--gpu", "h100")
    assert code == 0
    heading = out.splitlines()[1]
    for words in ("sequence parallelism over 2", "1,048,576 tokens", "tiled MLP", "checkpointing on the host"):
        assert words in heading
    data = data_of(zerokit, *command, "--fit", "79GiB")
    run = data["run"]
    assert (run["sequence_parallel"], run["tensor_parallel"], run["seq_len"]) == (2, 1, 2**20)
    assert run["tiled_mlp"]
    assert run["activation_offloading"]
    assert data["largest"]["seq_len"] > 2**20


def test_the_text_begins_with_the_verdict_and_is_short(zerokit: Run) -> None:
    code, out, _ = zerokit(*ONE, "--gpu", "h100")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("Fits: needs ")
    assert len(lines) <= 25
    assert f"{data_of(zerokit, *ONE)['device']['peak_bytes'] / 2**30:.2f} GiB" in out
    for formula in ("2Φ", "2Φ/N", "12Φ/N"):
        assert formula in out
    assert zerokit(*ONE)[1].startswith("No verdict: ")


def test_host_memory_that_is_given_is_judged_without_a_card(zerokit: Run) -> None:
    command = (*ONE, "--offload-optimizer", "cpu", "--host-memory")
    code, out, _ = zerokit(*command, "10GiB")
    assert code == 1
    assert out.splitlines()[1].startswith("Host memory: does not fit: needs ")
    code, out, _ = zerokit(*command, "9TiB")
    assert code == 0
    assert "Host memory: fits" in out


def test_details_name_states_phase_and_certainty(zerokit: Run) -> None:
    code, out, _ = zerokit(*ONE, "--details")
    assert code == 0
    data = data_of(zerokit, *ONE)
    assert "Model states, 2Φ + 2Φ/N + 12Φ/N bytes" in out
    assert f"{data['device']['peak_bytes'] / 2**30:.2f} GiB" in out
    assert "What makes the peak, in " in out
    assert "exact" in out
    assert "modelled" in out
    assert "Not included above (a guess): CUDA context" in out
    for line in ("Host, one rank", "of it pinned", "Host, one node"):
        assert line in out


def test_the_heading_names_a_micro_batch_that_the_trainer_chose(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}')
    words = ("estimate", MODEL, "--num-gpus", 2, "--ds-config", file, "--seq-len", 512)
    assert "micro batch 8 (the Trainer's default), " in zerokit(*words)[1]
    assert "micro batch 2, " in zerokit(*words, "--micro-batch-size", 2)[1]


def test_explain_fills_numbers_in(zerokit: Run) -> None:
    code, out, _ = zerokit(*ONE, "--explain")
    assert "N = " in out
    assert "\nt = " not in out  # no formula of this run has it
    assert code == 0
    assert "\nΦ = 494,032,768: parameters\nN = 8: GPUs\n" in out
    assert "12Φ/N = 12 · 494M / 8" in out
    for component in data_of(zerokit, *ONE)["device"]["components"]:
        assert component["formula"] in out
        assert component["source"] in out


def test_a_bare_count_counts_no_activations(zerokit: Run) -> None:
    data = data_of(zerokit, "estimate", "7.5B", "--num-gpus", 64, "--zero-stage", 3)
    assert data["activations_counted"] is False
    assert data["model_states"]["optimizer_states_bytes"] == 12 * 7_500_000_000 // 64
    assert any("activations are not counted" in warning for warning in data["warnings"])
    assert not any(part["category"] == "activations" for part in data["device"]["components"])
    code, out, _ = zerokit("estimate", "7.5B", "--num-gpus", 64, "--zero-stage", 3)
    assert code == 0
    assert "activations are not counted" in out


def test_a_folder_named_like_a_count_is_a_model(zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("7bn").mkdir()
    Path("7bn", "config.json").write_text(json.dumps({"model_type": "llama", **CONFIG}))
    words = ("--num-gpus", 1, "--zero-stage", 3)
    assert "Missing option '--seq-len'" in refused(zerokit, "estimate", "7bn", *words)
    assert zerokit("estimate", "7bn", *words, "--seq-len", 8)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--gpu", "A100-40"], 0, "Fits: needs"),
        (["--gpu-memory", "1GiB"], 1, "Does not fit: needs"),
        (["--fit", "1GiB"], 1, "Does not fit: needs"),
        (
            ["--fit", "80GiB"],
            0,
            "Largest micro batch at 512 tokens on 8 GPUs of 80.00 GiB: |"
            "Longest sequences at micro batch 1 on 8 GPUs of 80.00 GiB: |"
            "Fewest GPUs of 80.00 GiB: 1\nThese are sizes that certainly fit (tight",
        ),
        (["--fit", "64MiB"], 1, "Fewest GPUs of 64.00 MiB: no number with these settings\n"),
    ],
)
def test_whether_it_fits_is_the_exit_code(zerokit: Run, options: list[str], code: int, words: str) -> None:
    answered, out, _ = zerokit(*ONE, *options)
    assert answered == code
    for one in words.split("|"):
        assert one in out


@pytest.mark.parametrize(("verdict", "ending"), [("fits", "(--host-memory)"), ("does not fit", " of 1.00 GiB")])
def test_a_sweep_names_the_memory_of_hosts_only_if_a_setting_fits(verdict: Verdict, ending: str) -> None:
    cluster = Cluster(2, gpu=find_gpu("4090"))
    fit = Fit(verdict, 0, 0, GIB, host_fit(cluster, 60 * GIB, 0))
    (line,) = _verdicts([(mock.Mock(), fit)])
    assert line.endswith(ending)


OFFLOADED = [*ONE, "--zero-stage", 3, "--offload-optimizer", "cpu", "--offload-param", "cpu"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        # Each looks for the changes that would help.
        pytest.param(
            *(["--gpu", "4090", "--host-memory", "8GiB"], 1, "Does not fit in host memory: needs"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(["--fit", "24GiB", "--host-memory", "8GiB"], 1, "Largest micro batch at 512 tokens on|: none"),
            marks=pytest.mark.slow,
        ),
        (["--gpu", "4090", "--host-memory", "1TiB"], 0, "of each host's 1.00 TiB"),
        (["--gpu", "H100"], 0, "of each host's 1.76 TiB (a typical cloud node"),
        (
            ["--gpu", "H100", "--num-gpus", "2,8"],
            0,
            "settings fit a GPU of 79.19 GiB and nodes of 450.00 GiB to 1.76 TiB (typical cloud nodes)",
        ),
    ],
)
def test_what_the_host_cannot_hold_does_not_fit(zerokit: Run, options: list[str], code: int, words: str) -> None:
    answered, out, _ = zerokit(*OFFLOADED, *options)
    assert answered == code
    for one in words.split("|"):
        assert one in out


def test_what_fits_is_in_the_json(zerokit: Run) -> None:
    data = data_of(zerokit, *ONE, "--fit", "24GiB")
    assert data["fit"]["verdict"] == "fits"
    assert data["largest"]["fewest_gpus"] == 1
    larger = data["largest"]["micro_batch_size"]
    assert data_of(zerokit, *ONE[:-3], larger, *ONE[-2:], "--gpu-memory", "24GiB")["fit"]["verdict"] == "fits"


def test_a_ds_config_with_auto(zerokit: Run) -> None:
    file = REPOSITORY / "ds_configs" / "zero3_offload.json"
    command = ["estimate", MODEL, "--num-gpus", 8, "--ds-config", file, "--seq-len", 512]
    data = data_of(zerokit, *command, "--micro-batch-size", 2)
    assert (data["zero_stage"], data["run"]["micro_batch_size"]) == (3, 2)
    assert data["run"]["offload_optimizer"] == data["run"]["offload_param"] == "cpu"
    assert data["host"]["pinned_bytes"] > 0
    assert "which DeepSpeed compares with a number" in refused(zerokit, *command, "--target", "deepspeed")


def test_the_answer_is_written_to_files(zerokit: Run, tmp_path: Path) -> None:
    code, out, _ = zerokit(*ONE, "-o", tmp_path / "a.json", "--plot", tmp_path / "a.svg", "--format", "json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "a.json").read_text())
    assert "<svg" in (tmp_path / "a.svg").read_text()
    for words in (["-o", tmp_path / "a.json"], ["--plot", tmp_path / "a.svg"]):
        code, _, err = zerokit(*ONE, *words)
        assert (code, "the file exists. Add --force" in err) == (2, True)
        assert zerokit(*ONE, *words, "--force")[0] == 0


def test_a_dash_for_the_file_has_the_json_alone_on_stdout(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert zerokit(*ONE, "-o", "-") == zerokit(*ONE, "--format", "json")
    for words in (["config", "--zero-stage", 2], ["schema"]):
        assert zerokit(*words, "-o", "-") == zerokit(*words)
    assert list(tmp_path.iterdir()) == []


CONFIG = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("absent/config.json", ["--zero-stage", 2], "absent/config.json"),
        *(
            (text, ["--zero-stage", 2], f"model: '{text}' is no number of parameters. Write it like 7.5B")
            for text in ("0", "7bn", "nan", "inf", "0.5", "1e400", "7.5.1B", "0" * 300)
        ),
        ("3b-model", ["--zero-stage", 2], "'3b-model' is "),
        ("01-ai/no-such-model", ["--zero-stage", 2], "'01-ai/no-such-model' is "),
        (MODEL, ["--zero-stage", 4], "--zero-stage: is 4. Give 0 to 3"),
        (MODEL, ["--zero-stage", "two"], "--zero-stage: 'two' is not a whole number"),
        (MODEL, ["--zero-stage", 2, "--micro-batch-size", "2k"], "'2k' is not a whole number. Write 2000"),
        (MODEL, ["--zero-stage", "1,,2"], "--zero-stage: '' is not a whole number"),
        (
            MODEL,
            ["--zero-stage", 2, "--seq-len", "131,072"],
            "'131,072' may be one length or several. Write 131072, or '131, 072' for several lengths",
        ),
        (MODEL, [], "Missing option '--zero-stage'. Pass it, or a file with --ds-config. Run 'zerokit estimate"),
        ("no-such-model", ["--zero-stage", 2], "zerokit models lists"),
        ("no such model", ["--zero-stage", 2], "or what zerokit models lists"),
        (MODEL, ["--zero-stage", 2, "--num-gpus", 0], "--num-gpus: is 0. Give 1 or more"),
        (MODEL, ["--zero-stage", 2, "--num-gpus", -4], "--num-gpus"),
        (MODEL, ["--zero-stage", 2, "--num-gpus", 12], "12 GPUs do not fill nodes of 8"),
        (MODEL, ["--zero-stage", 2, "--seq-len", 0], "--seq-len: is 0"),
        (MODEL, ["--zero-stage", 2, "--micro-batch-size", "1,0"], "--micro-batch-size: is 0"),
        (MODEL, ["--zero-stage", 2, "--gradient-accumulation-steps", 0], "--gradient-accumulation-steps"),
        (MODEL, ["--zero-stage", 1, "--offload-param", "cpu"], "offload of parameters needs ZeRO stage 3"),
        (MODEL, ["--zero-stage", 2, "--fit", "80"], "--fit: '80' is less than a MiB"),
        (MODEL, ["--zero-stage", 2, "--fit", "much"], "--fit: 'much' is not a size in bytes"),
        (
            MODEL,
            ["--zero-stage", 2, "--gpu", "H100", "--fit", "80GiB"],
            "--gpu and --fit: both set the memory of a GPU. Leave out the size after --fit",
        ),
        (MODEL, ["--zero-stage", "1,2", "--fit", "80GiB"], "--fit: is for one run"),
        (MODEL, ["--gpu", "H100", "--fit", "gpt2"], "--fit: 'gpt2' is not a size in bytes. Write it like 80GiB. For"),
        (MODEL, ["--gpu", "h100", "--gpu=b200"], "--gpu: is given more than once. Write --gpu h100,b200"),
        (MODEL, ["--zero-stage", "1,2", "--explain"], "--explain: is for one run"),
        (MODEL, ["--zero-stage", 2, "--load-in-4bit"], "supported with them. Add LoRA with --lora-rank"),
        (MODEL, ["--zero-stage", 2, "--lora-targets", "q_proj"], "--lora-targets: no adapter with targets"),
        (
            MODEL,
            ["--zero-stage", 2, "--peft", "prompt_tuning", "--lora-targets", "q_proj"],
            "--lora-targets: no adapter with targets is requested. Give --lora-rank, or --peft ia3",
        ),
        (MODEL, ["--zero-stage", 2, "--lora-dropout"], "--lora-dropout: LoRA is not requested"),
        (
            MODEL,
            ["--zero-stage", 2, "--peft", "ia3", "--dora"],
            "--dora: LoRA is not requested. Give --lora-rank, and no --peft",
        ),
        (MODEL, ["--zero-stage", 2, "--peft", "ia3", "--load-in-4bit"], "only LoRA adapters are supported with them"),
        (
            MODEL,
            ["--zero-stage", 2, "--peft", "ia3", "--lora-rank", 8],
            "--peft and --lora-rank: two adapters are given",
        ),
        (MODEL, ["--zero-stage", 2, "--peft", "ia3", "--virtual-tokens", 8], "no tokens are learned"),
        (MODEL, ["--zero-stage", 2, "--peft", "ia3", "--lora-targets", "query"], "--lora-targets: the model"),
        (MODEL, ["--zero-stage", 2, "--lora-rank", 8, "--lora-targets", "query"], "no module 'query'"),
        (MODEL, ["--zero-stage", 2, "--plot", "a.png"], "--plot a.png: a picture is written as SVG, not as PNG"),
        (MODEL, ["--zero-stage", 2, "-o", "absent/a.json"], "absent/a.json: cannot be written: its folder"),
        (MODEL, ["--ds-config", "absent.json"], "absent.json: no such file"),
        (MODEL, ["--ds-config", "ds.json"], "ds.json"),
        (MODEL, ["--zero-stage", 2, "--ds-config", "ds.json"], "--ds-config: the ds_config says how"),
        ("config.json", ["--zero-stage", 2], "config.json"),
        ("7B", ["--recipe", "mine.yaml"], "zerokit rehearse -m zerokit.train --recipe FILE"),
        ("7B", ["--zero-stage", 2, "--lora-rank", 8], "adapters and frozen modules need a model"),
        ("7B", ["--zero-stage", 2, "--trainable-parameters", 0], "--trainable-parameters: 0 is not positive"),
        (MODEL, ["--zero-stage", 2, "--autocast"], "--autocast: DeepSpeed has autocast of its own"),
        (
            "7B",
            ["--zero-stage", 2, "--trainable-parameters", "8B"],
            "--trainable-parameters: 8,000,000,000 is more than the model's 7,000,000,000 parameters",
        ),
    ],
)
def test_bad_input_is_one_line_and_2(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, options: list[object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"zero_optimization": {"stage": 9}}')
    Path("config.json").write_text(json.dumps({"model_type": "llama", **CONFIG, "hidden_size": -64}))
    given = {"--num-gpus": 4, "--seq-len": 128}
    rest = [word for name, value in given.items() if name not in options for word in (name, value)]
    assert message in refused(zerokit, "estimate", model, *rest, *options)


def test_a_person_at_a_terminal_is_asked_for_what_is_missing(
    zerokit: Run, answers: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(f"qwen2.5-0.6b\n{MODEL}\neight\n8\n512\n2\n")
    code, out, err = zerokit("estimate", "--micro-batch-size", 1)
    assert code == 0
    assert "Did you mean 'qwen2.5-0.5b'?" in err
    assert "'eight' is not a whole number" in err
    one_line = f"--micro-batch-size 1 {MODEL} --num-gpus 8 --seq-len 512 --zero-stage 2"
    assert f"In one line: zerokit estimate {one_line}\n" in err
    assert out.endswith(zerokit(*ONE)[1])
    code, out, err = zerokit("estimate", MODEL, "--zero-stage", "2,4")  # said before the first question
    assert (code, err) == (2, "zerokit: error: --zero-stage: is 4. Give 0 to 3, or none\n")
    answers("7.5B\n8\n2\n")  # which needs no length
    assert zerokit("estimate")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{MODEL}\n8\n512\n2\n"))  # a pipe
    assert (
        "Missing argument 'MODEL', option '--num-gpus', option '--seq-len', option '--zero-stage'. For "
        "example: llama-3.1-8b --num-gpus 8 --seq-len 4096 --zero-stage 3 (or --ds-config FILE)"
        in refused(zerokit, "estimate")
    )


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["llama-3.1-8b"], "--num-gpus 1 --seq-len 2048 --zero-stage 0,1,2,3"),
        (["gpt2", "--offload-optimizer", "cpu"], "--num-gpus 1 --seq-len 1024 --zero-stage 1,2,3"),
        (["1B", "--fit", "80GiB"], "--num-gpus 1 --zero-stage 3"),
    ],
)
def test_enter_takes_the_defaults(words: list[str], taken: str, zerokit: Run, answers: Callable[[str], None]) -> None:
    answers("\n" * 3)
    code, out, err = zerokit("estimate", *words)
    assert code == 0
    assert f"In one line: zerokit estimate {' '.join(words)} {taken}\n" in err
    assert "ZeRO" in out


def test_input_that_ends_is_answered_as_a_pipe(zerokit: Run, answers: Callable[[str], None]) -> None:
    answers("2\n")
    code, _, err = zerokit("estimate", MODEL)
    assert code == 2
    missing = "zerokit: error: Missing option '--num-gpus', option '--seq-len', option '--zero-stage'."
    assert err.splitlines()[-1].startswith(missing)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["llama-3.1-9b"], "Did you mean 'llama-3.1-8b'?"), (["llama-3.1-8b", "--gpu", "4091"], "Did you mean '4090'?")],
)
def test_no_question_before_a_misspelt_name(
    words: list[str], message: str, zerokit: Run, answers: Callable[[str], None]
) -> None:
    answers("\n" * 3)
    assert message in refused(zerokit, "estimate", *words)


def test_lengths_beyond_the_model_are_named(zerokit: Run) -> None:
    words = "sequences of 65,536 tokens are longer than the 32,768 positions that the model has"
    assert not any(words in line for line in data_of(zerokit, *ONE)["warnings"])
    assert any(words in line for line in data_of(zerokit, *ONE, "--seq-len", 65536)["warnings"])


def test_a_loss_in_chunks_makes_no_logits(zerokit: Run) -> None:
    def logits(*options: str) -> set[str]:
        sizes = ("--seq-len", 16384, "--eval-batch-size", 1)
        components = data_of(zerokit, *ONE, *sizes, *options)["device"]["components"]
        return {part["phase"] for part in components if part["name"].startswith("logits")}

    assert logits() >= {"forward", "loss", "evaluation"}
    assert logits("--liger") == {"evaluation"}  # where Liger makes them, too
    assert not logits("--chunked-loss")


def test_stage_0_says_what_the_run_needs_without_deepspeed(zerokit: Run) -> None:
    words = ("estimate", MODEL, "--num-gpus", 2, "--seq-len", 512)
    line = "Without DeepSpeed (--zero-stage none) it needs "
    out = zerokit(*words, "--zero-stage", 0)[1]
    plain = data_of(zerokit, *words, "--zero-stage", "none")["device"]
    assert f"{line}{plain['low_bytes'] / GIB:.2f} to {plain['high_bytes'] / GIB:.2f} GiB: model states of 8" in out
    for others in (["--zero-stage", 2], ["--zero-stage", 0, "--precision", "fp32"], ["--zero-stage", "none"]):
        assert line not in zerokit(*words, *others)[1]
    code, out, _ = zerokit(*words, "--zero-stage", "none,0", "--gpu", "4090")
    assert (code, "  none   3.68" in out) == (0, True)


def test_what_likely_does_not_fit_is_1_with_the_changes_that_help(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds_z2.json"  # hiyouga/LLaMA-Factory#8642
    file.write_text('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2, "overlap_comm": true}}')
    words = ["estimate", "qwen3-32b", "--num-gpus", 8, "--micro-batch-size", 1, "--ds-config", file]
    words += ["--precision", "bf16", "--seq-len", 2048, "--gradient-checkpointing", "--gpu", "H200"]
    code, out, _ = zerokit(*words)
    assert code == 1
    assert out.startswith("Likely does not fit: needs 138.28 to 156.64 GiB, the card has 139.80 GiB; 92% of")
    assert '  "zero_optimization": {"stage": 3} in the ds_config: needs ' in out
    assert json.loads(zerokit(*words, "--format", "json")[1])["advice"][0]["fit"]["verdict"] == "fits"


def test_several_cards_are_one_table_with_a_verdict_each(zerokit: Run) -> None:
    words = ["estimate", "qwen2.5-7b", "--num-gpus", 2, "--seq-len", 2048, "--gradient-checkpointing"]
    code, out, _ = zerokit(*words, "--zero-stage", 3, "--gpu", "h100,a100-40,H100")
    assert code == 0
    assert out.startswith("H100-SXM, 79.19 GiB: fits\nA100-40GB-SXM, 39.49 GiB: does not fit\n")
    assert [row.split()[-1] for row in out.splitlines() if re.match("  (H|A)100", row)] == ["yes", "no"]
    swept = data_of(zerokit, *words, "--zero-stage", 3, "--gpu", "h100,a100-40")["sweep"]
    assert [one["run"]["gpu"] for one in swept] == ["H100-SXM", "A100-40GB-SXM"]
    hint = "Hint: No setting certainly fits. For advice give one setting\n"
    assert hint not in out
    code, out, _ = zerokit(*words, "--zero-stage", 3, "--gpu", "4090,a100-40")
    assert (code, out.endswith(hint)) == (1, True)
    assert "4 settings fit" in zerokit(*words, "--zero-stage", "0,1,2,3", "--gpu", "h100,a100-40")[1]


@pytest.mark.slow  # three searches for the largest micro batch
@pytest.mark.parametrize("place", [0, 2])
def test_fit_by_itself_is_the_memory_of_the_card(zerokit: Run, place: int) -> None:
    words: list[object] = ["--gpu", "4090"]
    words.insert(place, "--fit")
    found = data_of(zerokit, *ONE[:2], *words, *ONE[2:])
    assert found["largest"] == data_of(zerokit, *ONE, "--fit", found["fit"]["gpu_memory_bytes"])["largest"]
    assert "--fit: no card is named" in refused(zerokit, *ONE, "--fit")


def test_activations_need_a_length(zerokit: Run) -> None:
    assert "Missing option '--seq-len'. Activations depend on it. A bare number of parameters" in refused(
        zerokit, "estimate", MODEL, "--num-gpus", 4, "--zero-stage", 2
    )
    assert zerokit("estimate", "7B", "--num-gpus", 4, "--zero-stage", 2)[0] == 0


def test_a_ds_config_with_several_mistakes_says_what_names_them_all(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 2, "overlap_com": True},
    }
    Path("ds.json").write_text(json.dumps(config))
    command = ["estimate", MODEL, "--num-gpus", 4, "--seq-len", 512, "--ds-config", "ds.json"]
    err = refused(zerokit, *command)
    assert "64 is not 2 (train_micro_batch_size_per_gpu) x 4" in err
    assert "(and 1 more)" in err
    told = err.partition("numbers. ")[2].partition(" names all")[0].split()
    code, out, _ = zerokit(*told[1:])
    assert code == 1
    assert "overlap_com" in out
    assert "2 errors" in out


def test_what_the_options_make_wrong_is_not_said_to_be_named_by_check(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def told(config: dict[str, Any], *options: object) -> str:
        Path("ds.json").write_text(json.dumps(config))
        command = ["estimate", MODEL, "--num-gpus", 8, "--seq-len", 512, "--ds-config", "ds.json"]
        code, _, err = zerokit(*command, *options)
        assert (code, "more)" in err) == (2, True), err
        return err

    sizes = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
    wrong = {"zero_optimization": {"stage": 2, "overlap_com": True, "reduce_bucket_sise": 5}}
    assert "names all" in told(sizes | wrong)
    del sizes["gradient_accumulation_steps"]
    err = told(sizes | wrong, "--micro-batch-size", 5)
    assert "(and 2 more)" in err
    assert "--num-gpus 8 names those of the file" in err
    err = told(sizes | wrong, "--gpus-per-node", 4)
    assert "--num-gpus 8 --gpus-per-node 4 names all" in err


def test_the_help_names_every_optimizer(zerokit: Run) -> None:
    _, out, _ = zerokit("estimate", "--help")
    named = " ".join(out.split()).partition("Optimizer of the script: ")[2].partition(".")[0]
    assert named == ", ".join(get_args(OptimizerKind))


@pytest.mark.torch
def test_an_encoder_and_its_decoder_have_their_own_positions(zerokit: Run, tmp_path: Path) -> None:
    sizes = {"max_position_embeddings": 40, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
    config = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["estimate", tmp_path, "--generate", "--num-gpus", 1, "--gpu-memory", "8GB"]
    assert zerokit(*words, "--prompt-tokens", 27, "--new-tokens", 40)[0] == 0
    for lengths in ((41, 1), (1, 41)):
        code, _, err = zerokit(*words, "--prompt-tokens", lengths[0], "--new-tokens", lengths[1])
        assert code == 2
        assert "41 tokens do not fit" in err
        assert "has 40 positions for prompt or new tokens" in err


GENERATE = ["estimate", "llama-3.1-8b", "--generate", "--prompt-tokens", 512, "--new-tokens", 512, "--num-gpus", 2]


def test_generation_recommends_the_fastest_mode_that_fits(zerokit: Run) -> None:
    data = data_of(zerokit, *GENERATE, "--gpu", "a100-80gb", "--batch-size", 4)
    modes = {one["mode"]: one for one in data["modes"]}
    assert set(modes) == {"replicated", "tensor", "sharded", "offloaded"}
    assert data["mode"] == data["modes"][0]["mode"] == "replicated"
    assert data["advice"].startswith(f"use --mode replicated --batch-size {modes['replicated']['largest_batch']}: ")
    assert modes["sharded"]["device"]["weights_bytes"] < modes["replicated"]["device"]["weights_bytes"]
    code, out, _ = zerokit(*GENERATE, "--gpu", "4090", "--mode", "replicated", "--batch-size", 200)
    assert code == 1
    assert "Replicated is not possible: needs " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*GENERATE, "--seq-len", 5], "--seq-len: does not go with --generate"),
        ([*GENERATE[:3], "--num-gpus", 1], "--prompt-tokens: is missing"),
        ([*ONE, "--new-tokens", 5], "--new-tokens: is for generation. Add --generate"),
        ([*GENERATE[:-1], "1,2"], "--num-gpus: is a list"),
        ([GENERATE[0], "7B", *GENERATE[2:]], "MODEL: is a number. Name a model"),
        ([GENERATE[0], "gpt2", *GENERATE[2:], "--new-tokens", 513], "gpt2 has 1,024 positions"),
    ],
)
def test_options_of_training_and_generation_do_not_mix(words: list[Any], message: str, zerokit: Run) -> None:
    code, _, err = zerokit(*words)
    assert code == 2
    assert message in err
