"""``zerokit train`` and ``zerokit generate``: their words, and what they start."""

from __future__ import annotations

import os
import re
import runpy
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.cli.conftest import refused
from tests.tiny import ONE_STEP_RECIPE, REPOSITORY
from zerokit.distributed import launcher
from zerokit.errors import ZerokitError
from zerokit.generation.options import Options
from zerokit.recipe import load
from zerokit.training.main import check_recipe_quickly

Run = Callable[..., tuple[int, str, str]]
LEAST = ["--model", "m", "--prompt", "a"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launcher, and no end of this process."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("zerokit.distributed.group.leave", sys.exit)


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch, zerokit: Run) -> Callable[..., Options]:
    """The options with which ``zerokit generate`` would run."""

    def options(*words: object) -> Options:
        found: list[Options] = []
        monkeypatch.setattr("zerokit.generation.main.main", lambda options, **_: found.append(options) or 0)
        monkeypatch.setattr("zerokit.generation.main.check_options", lambda options, **_: None)
        code, out, err = zerokit("generate", *words)
        assert (code, out, err) == (0, "", "")
        return found[0]

    return options


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, zerokit: Run) -> Callable[..., tuple[Any, ...]]:
    """Recipe, overrides and `force` with which ``zerokit train`` would run."""

    def arguments(*words: object) -> tuple[Any, ...]:
        found: list[tuple[Any, ...]] = []

        def main(recipe: Path | None, overrides: list[str], *, force: bool, **options: bool) -> int:
            found.append((recipe, overrides, force))
            return 0

        monkeypatch.setattr("zerokit.training.main.main", main)
        code, out, err = zerokit("train", *words)
        assert (code, out, err) == (0, "", "")
        return found[0]

    return arguments


def test_generate_reads_its_own_options(generated: Callable[..., Options]) -> None:
    options = generated(*LEAST)
    assert options == Options(model="m", texts=("a",))
    assert {"--num-gpus", "--batch-size", "--prompt"} <= set(options.own_names)
    assert generated("--model", "m", "--prompt", "a", "--prompt=-c").texts == ("a", "-c")


def test_words_of_others_keep_their_order(generated: Callable[..., Options]) -> None:
    words = ["--max_new_tokens", "4", *LEAST, "--do_sample", "-o", "o", "--length_penalty", "-1.5", "--max=3"]
    options = generated(*words)
    own = ("--model", "m", "--prompt", "a", "-o", "o")
    assert options.sampling_words == tuple(word for word in words if word not in own)
    assert options.output == Path("o")
    assert generated(*LEAST, "-o", "-").output is None


@pytest.mark.parametrize(
    "words",
    [
        ["--suppress_tokens", "-ox.jsonl"],
        ["--stop_strings", "-ho"],
        ["--stop_strings", "-high", "--do_sample"],
        ["--stop_strings=-h"],
        ["--stop_strings", "--", "x"],
    ],
)
def test_values_of_other_options_are_no_options(
    generated: Callable[..., Options], trained: Callable[..., tuple[Any, ...]], words: list[str]
) -> None:
    for order in ((*words, *LEAST), (*LEAST, *words)):
        found = generated(*order)
        assert (found.sampling_words, found.output) == (tuple(words), None)
    assert trained(*words, "--force") == (None, words, True)


def test_double_hyphens_are_no_value(zerokit: Run) -> None:
    code, out, err = zerokit("train", "--data.train", "--", "x")
    assert (code, out) == (2, "")
    assert "--data.train: has no value. Write --data.train=VALUE" in err


def test_a_value_of_an_own_option_is_no_help(
    generated: Callable[..., Options], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert generated("--model", "m", "--prompt", "-h").texts == ("-h",)


@pytest.mark.parametrize("word", ["--local_rank=1", "--local-rank=1"])
def test_the_launchers_word_is_passed_over(
    generated: Callable[..., Options], trained: Callable[..., tuple[Any, ...]], word: str
) -> None:
    assert generated(word, *LEAST).sampling_words == ()
    assert trained(word) == (None, [], False)


def test_a_recipe_and_its_overrides(trained: Callable[..., tuple[Any, ...]]) -> None:
    words = ["--model", "x", "--recipe", "r.yaml", "--training.seed=-3", "--training.lr", "-1e-5", "--force"]
    overrides = ["--model", "x", "--training.seed=-3", "--training.lr", "-1e-5"]
    assert trained(*words) == (Path("r.yaml"), overrides, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate"], "Missing option '--model'"),
        (
            ["generate", "--model", "m"],
            "Missing option '--prompts'. Give it, or write one with --prompt TEXT. Run 'zerokit gen",
        ),
        (["generate", *LEAST, "--prompts", "f"], "--prompts: --prompt is given too. Give one of the two"),
        (["generate", *LEAST, "--batch-size"], "Option '--batch-size' requires an argument"),
        (["generate", *LEAST, "--batch-size", "0"], "--batch-size: is 0. Give 1 or more"),
        (["generate", *LEAST, "--batch-size", "many"], "--batch-size: 'many' is not a whole number. Give 1 or more"),
        (["generate", *LEAST, "--seed", "-1"], "--seed: is -1. Give 0 or more"),
        (["generate", *LEAST, "--dtype", "half"], "Invalid value for '--dtype': "),
        (["train", "--recipe"], "Option '--recipe' requires an argument. Run 'zerokit train --help'"),
        (["train", "--master_port", "29511"], "--master_port: is for the launcher that --num-gpus starts"),
        (["train", "--master-port", "70000"], "--master-port: is 70000. Give 1 to 65535"),
        (["train", "--recipe", "none.yaml"], "none.yaml: no such file. Check the path"),
        (["train", "word"], "command line: 'word' belongs to no option. Write overrides as --section.key"),
        (["train", "my.yaml"], "command line: 'my.yaml' belongs to no option. Write --recipe my.yaml"),
        (["train", "--num-gpus", "0"], "--num-gpus: is 0. Give 1 or more"),
    ],
)
def test_mistakes_are_one_line_and_2(zerokit: Run, words: list[str], message: str) -> None:
    err = refused(zerokit, *words)
    assert err.startswith(f"zerokit: error: {message}")


@pytest.mark.parametrize("words", [["--forc"], ["--recipe", "r.yaml", "--stuckafter=3"], ["--num-gpu", "2"]])
def test_train_suggests_its_own_options(zerokit: Run, words: list[str]) -> None:
    meant = {"--forc": "--force", "--stuckafter=3": "--stuck-after", "--num-gpu": "--num-gpus"}
    (word,) = (word for word in words if word in meant)
    assert f"{word.partition('=')[0]}: unknown option. Did you mean '{meant[word]}'?" in refused(
        zerokit, "train", *words
    )


def test_a_recipe_is_printed_by_one_rank(zerokit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zerokit("train", "--print-recipe")[1].startswith("# A start for your own fine-tuning run")
    for words, said in (
        (["dpo"], "--print-recipe: 'dpo' belongs to no option. Write --print-recipe --task.type dpo"),
        (["SFT"], "--print-recipe: 'SFT' belongs to no option. Write --print-recipe --task.type causal_lm"),
        (["--num-gpus", "3"], "--num-gpus: would change nothing: --print-recipe prints a recipe as it is"),
        (["--push-to-hub", "a/b"], "--push-to-hub: would change nothing: --print-recipe prints a"),
        (["--task.type", "dpo", "--model", "m"], "--model: would change nothing: --print-recipe prints a"),
        (["--recipe", "mine.yaml"], "--recipe: would change nothing: --print-recipe prints a recipe as it is"),
    ):
        assert f"zerokit: error: {said}" in refused(zerokit, "train", "--print-recipe", *words)
    code, _, err = zerokit("train", "--preview", "1", "--push-to-hub", "a/b")
    assert (code, "--push-to-hub: would change nothing: --preview trains nothing" in err) == (2, True)
    monkeypatch.setenv("RANK", "1")
    assert zerokit("train", "--print-recipe") == (0, "", "")
    assert zerokit("train", "--help") == (0, "", "")


@pytest.mark.torch
def test_num_gpus_runs_deepspeeds_launcher(zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(ONE_STEP_RECIPE)
    Path("data.jsonl").touch()
    started: list[list[str]] = []

    def run_launcher(words: list[str], ranks: int, environment: dict[str, str], **options: Any) -> int:
        assert Path(words[0]) == Path(sys.executable).with_name("deepspeed")
        assert environment["PATH"].startswith(f"{Path(words[0]).parent}{os.pathsep}")
        started.append(words[1:])
        return 0

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(launcher, "run_launcher", run_launcher)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *given, **_: asked.append(given) or ".")
    words = ["--num-gpus", "2", "--recipe", "r.yaml", "--training.seed", "1"]
    assert zerokit("train", *words)[0] == 0
    assert zerokit("generate", *LEAST, "--num-gpus=3")[0] == 0
    assert asked == [("model",), ("m",)]
    launch, generate = ([word for word in words if not word.isdigit() or len(word) < 4] for words in started)
    alone = ("--num_gpus", "2", "--master_port", "--hostfile", os.devnull)
    assert launch == [*alone, "--module", "zerokit.train", *words]
    assert generate[-6:] == ["zerokit.generate", *LEAST, "--num-gpus=3"]
    with socket.socket() as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
        code, _, err = zerokit("train", "--num-gpus", "2", "--master_port", port)
        assert (code, len(started)) == (2, 2)
        assert f"zerokit: error: --master_port: another process has port {port}. Give" in err
    assert zerokit("train", "--num-gpus", "2", "--master_port", port)[0] == 0
    assert started[2][2:4] == ["--master_port", f"{port}"]
    Path("out").mkdir()
    Path("out/run.json").touch()
    code, _, err = zerokit("train", *words)
    assert (code, len(started)) == (2, 3)
    assert "r.yaml:7 (training.output_dir): 'out' has the model of an earlier run. Name another" in err
    assert zerokit("train", *words, "--force")[0] == 0
    code, _, err = zerokit("train", *words, "--force", "--training.report_to", "[trackio]")
    assert (code, len(started)) == (2, 4)
    assert "--training.report_to: trackio is not installed. Run pip install trackio" in err
    for value, said in {"5": "expected text, found 5", "a" * 300: "cannot read 'aaa"}.items():
        code, _, err = zerokit("train", "--num-gpus", "2", "--training.output_dir", value)
        assert (code, len(started)) == (2, 4)
        assert f"--training.output_dir: {said}" in err


@pytest.mark.parametrize("option", ["--num-gpus", "--num_gpus"])
def test_num_gpus_is_passed_over_by_the_ranks_that_it_started(
    trained: Callable[..., tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert trained(option, "2") == (None, [], False)


def test_another_number_of_ranks_is_refused(zerokit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    assert "--num-gpus: the launcher has started 1 ranks, not 2. Leave it out under a launcher" in refused(
        zerokit, "train", "--num-gpus", "2"
    )


@pytest.mark.parametrize(
    ("start", "words", "printed"),
    [
        (f"{REPOSITORY}/launch/train.py", ["--print-recipe"], "fine-tuning run"),
        (f"{REPOSITORY}/launch/generate.py", ["--help"], "Usage: zerokit generate"),
        ("zerokit", ["train", "--print-recipe"], "fine-tuning run"),
        ("zerokit.train", ["--print-recipe"], "fine-tuning run"),
        ("zerokit.generate", ["--help"], "Usage: zerokit generate"),
    ],
)
def test_every_way_to_start_them(
    start: str, words: list[str], printed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [start, *words])
    run = runpy.run_path if start.endswith(".py") else runpy.run_module
    with pytest.raises(SystemExit) as caught:
        run(start, run_name="__main__")
    assert caught.value.code == 0
    assert printed in capsys.readouterr().out


@pytest.mark.torch
@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights (model.safetensors). Copy"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no header"), "model.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), "has no config.json. Name a model folder"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (lambda folder: (folder / "config.json").write_text("{}"), "has no 'model_type'"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'
            ),
            "model-00001-of-00002.safetensors is missing. Copy the whole checkpoint",
        ),
    ],
)
def test_a_model_folder_is_looked_at_before_the_launcher(
    break_it: Callable[[Path], object], says: str, tmp_path: Path, zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(launcher, "run_launcher", lambda *words, **_: started.append(words) or 0)
    monkeypatch.setattr("zerokit.extras.require", lambda *_, **__: None)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    header = b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    data = tmp_path / "a.jsonl"
    data.touch()
    words = {
        "train": ["--model", folder, "--data.train", data, "--training.output_dir", tmp_path / "out"],
        "generate": ["--model", folder, "--prompt", "a"],
    }
    for command, given in words.items():
        assert zerokit(command, "--num-gpus", "2", *given)[0] == 0
    assert len(started) == 2
    break_it(folder)
    for command, given in words.items():
        assert says in refused(zerokit, command, "--num-gpus", "2", *given)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"data.train": "none.jsonl"}, "--data.train: no such file: 'none.jsonl'. Check the path"),
        ({"data.eval": "none.jsonl"}, "--data.eval: no such file: 'none.jsonl'. Check the path"),
        ({"data.train": "notes.md"}, "--data.train: 'notes.md' ends in '.md', which is no known data format"),
        (
            {"data.train": "parts", "data.eval_split": "validaton"},
            "--data.eval_split: no file in 'parts' is by its name of split 'validaton'",
        ),
        ({"model.path": "./none"}, "--model.path: no such model folder: './none'. Check the path"),
    ],
    ids=["train", "eval", "format", "split", "model"],
)
def test_what_is_missing_is_told(
    named: dict[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.md").touch()
    Path("parts").mkdir()
    Path("parts/train.jsonl").touch()
    loaded = load.load_recipe(None, [word for key, name in named.items() for word in (f"--{key}", name)])
    with pytest.raises(ZerokitError, match=rf"^{re.escape(says)}"):
        check_recipe_quickly(loaded)


_READS = """
import sys
from zerokit.distributed.group import RankGroup
from zerokit.distributed.ranks import read_ranks
from zerokit.training.main import train
try:
    train(RankGroup(read_ranks()), None, sys.argv[1:], force=False)
except Exception as error:
    print(error, "torch" in sys.modules)
"""


@pytest.mark.torch
def test_what_is_missing_is_told_before_torch_and_before_the_output_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").touch()
    words = ["--data.train", "none.jsonl", "--training.output_dir", "out"]
    said = processes.checked([sys.executable, "-c", _READS, *words], cwd=tmp_path)
    assert said == "--data.train: no such file: 'none.jsonl'. Check the path False\n"


@pytest.mark.torch
def test_generate_refuses_a_missing_model_before_its_program_starts(
    zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.generation.main.main", lambda *_, **__: pytest.fail("the rank was started"))
    assert "no such model folder" in refused(zerokit, "generate", "--model", "/none/such/folder", "--prompt", "a")


@pytest.mark.parametrize(
    "words", [["train", "--model", "none/such"], ["generate", "--model", "none/such", "--prompt", "a"]]
)
@pytest.mark.torch
def test_a_model_that_the_hub_does_not_give_is_told_before_the_launcher(
    words: list[str], zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise ConnectionError(101, "Network is unreachable")

    monkeypatch.setattr(launcher, "run_launcher", lambda *_, **__: pytest.fail("ranks were started"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", refuses)
    code, out, err = zerokit(*words, "--num-gpus", "2")
    assert (code, out) == (2, "")
    assert "'none/such' is no local folder, and the Hub cannot be reached (Network is unreachable)" in err


def test_a_name_that_the_system_refuses_is_one_line(
    zerokit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerokit.extras.require", lambda *_, **__: None)
    monkeypatch.chdir(tmp_path)
    code, _, err = zerokit("train", "--num-gpus", "2", "--data.train", "a" * 300 + ".jsonl")
    assert code == 2
    assert re.fullmatch(r"zerokit: error: '?a{3}.*: File name too long\. Check its name, .*\n", err)


def test_a_pipe_that_ranks_of_a_launcher_do_not_have_is_named(zerokit: Run) -> None:
    assert "/dev/fd/987: no such file. Write what it has to a file: a pipe of the shell is not open in" in refused(
        zerokit, "train", "--recipe", "/dev/fd/987"
    )


@pytest.mark.parametrize("ranks", [(), ("--num-gpus", 2)])
@pytest.mark.parametrize("option", ["--resume", "--training.resume_from_checkpoint"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("autp", "'autp' is neither auto nor a folder. Did you mean 'auto'?"),
        ("{}/checkpoint-99", "'{}/checkpoint-99' does not exist. There are checkpoint-9"),
        ("{}", "'{}' is no checkpoint of a run: it has no trainer_state.json. Name {}/checkpoint-9, or auto"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused_before_ranks_start(
    value: str,
    said: str,
    option: str,
    ranks: tuple[Any, ...],
    tmp_path: Path,
    zerokit: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if option != "--resume" and not ranks:
        return
    monkeypatch.setattr(launcher, "run_launcher", lambda *_, **__: pytest.fail("started"))
    monkeypatch.setattr("zerokit.training.main.main", lambda *_, **__: pytest.fail("started"))
    (tmp_path / "checkpoint-9").mkdir()
    error = refused(zerokit, "train", option, value.replace("{}", str(tmp_path)), *ranks)
    assert f"{option}: {said.replace('{}', str(tmp_path))}" in error


def test_resume_has_the_words_of_the_recipe(trained: Callable[..., tuple[Any, ...]]) -> None:
    for word in ("auto", "true", "false"):
        assert trained("--resume", word)[1] == [f"--training.resume_from_checkpoint={word}"]


def test_evaluate_names_its_arguments_and_the_checkpoint_of_an_unfinished_run(
    tmp_path: Path, zerokit: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "run_launcher", lambda *_, **__: pytest.fail("started"))
    for number in (9, 30):
        (tmp_path / f"checkpoint-{number}").mkdir()
    (tmp_path / "run.json").write_text('{"recipe": {}}')
    code, _, err = zerokit("evaluate", tmp_path, "nofile.jsonl", "--num-gpus", 2)
    assert code == 2
    assert f"'{tmp_path}' has no final model yet. Name {tmp_path}/checkpoint-30\n" in err
    assert "error: nofile.jsonl: no such file" in err
    error = refused(zerokit, "evaluate", tmp_path, "nofile.jsonl", "--num-gpus", 2, "--bar", 3)
    assert "--bar: unknown option. " in error


def test_a_recipe_that_only_one_process_can_read_is_refused(zerokit: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    message = refused(zerokit, "train", "--recipe", tmp_path / "pipe", "--num-gpus", 2)
    assert "is a pipe, not a regular file, and each rank reads it. Save the recipe to a file" in message
