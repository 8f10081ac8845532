import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import refused
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.errors import ConfigError
from zerokit.hardware.cluster import Parallelism
from zerokit.recipe import load_recipe

Run = Callable[..., tuple[int, str, str]]

FOLDER = Path(__file__).parents[2] / "ds_configs"


def values(out: str) -> dict[str, dict[str, Any]]:
    return {value["path"]: value for value in json.loads(out)["values"]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    config = {
        **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128},
        **{"intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_auto_is_filled_as_the_trainer_does(zerokit: Run, model: Path) -> None:
    given = ("--argument", "bf16=true", "--argument", "per_device_train_batch_size=2")
    words = ("resolve", FOLDER / "zero3.json", "--num-gpus", 4, "--model", model, *given)
    code, out, err = zerokit(*words, "--format", "json")
    assert (code, err) == (0, "")
    found = values(out)
    assert found["zero_optimization.reduce_bucket_size"]["value"] == 128**2
    assert found["zero_optimization.stage3_param_persistence_threshold"]["value"] == 1280
    assert found["train_batch_size"] == {
        **{"path": "train_batch_size", "value": 8, "origin": "computed", "line": None, "known": True},
        "detail": "micro batch x accumulation steps x ranks",
    }
    assert found["bf16.enabled"]["detail"] == "--argument bf16"
    assert found["zero_optimization.stage"]["line"] == 12
    data = json.loads(out)
    assert (data["target"], data["num_gpus"], data["lost"], data["refused"]) == ("trainer", 4, [], [])


def test_defaults_are_shown_on_demand(zerokit: Run) -> None:
    words = ("resolve", FOLDER / "plain" / "zero2.json", "--num-gpus", 2, "--target", "deepspeed")
    _, out, _ = zerokit(*words, "--format", "json")
    assert "zero_optimization.reduce_bucket_size" not in values(out)
    _, out, _ = zerokit(*words, "--format", "json", "--all")
    assert values(out)["zero_optimization.reduce_bucket_size"]["origin"] == "default"
    _, text, _ = zerokit(*words)
    assert "values at DeepSpeed's default: show them with --all" in text
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["key", "value", "origin", "from"]
    assert ["bf16.enabled", "true", "file"] in [line[:3] for line in lines]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("model: FOLDER\ntraining: {learning_rat: 1}", "3 (training.learning_rat): 'learning_rat' is not a"),
        ("model: FOLDER\ntraining: {max_steps: many}", "3 (training.max_steps): expected a whole number, found the"),
        ("model: FOLDER\nparallel: {sequence: 2}", "3 (parallel.sequence): sequence parallelism needs ZeRO-3, and a"),
        ("model: ./absent\n", "2 (model): no such folder or config.json: './absent'. If it lies"),
    ],
)
def test_a_recipe_is_refused_as_train_would(zerokit: Run, model: Path, recipe: str, message: str) -> None:
    pytest.importorskip("transformers")
    file = model / "recipe.yaml"
    file.write_text("data: {train: x.jsonl}\n" + recipe.replace("FOLDER", str(model)))
    assert message in refused(zerokit, "resolve", "--recipe", file)
    if "absent" in recipe:
        assert zerokit("resolve", "--recipe", file, "--model", model)[0] == 0


@pytest.mark.torch
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("sequence_parallel_size: 2", "'sequence_parallel_size' divides no sequences here; DeepSpeed only counts 2 "),
        ("pipeline: {stages: 2}", "divides the model in a way that zerokit train does not run"),
    ],
)
def test_resolve_and_train_refuse_the_same_of_a_recipe(
    zerokit: Run, model: Path, tmp_path: Path, key: str, message: str
) -> None:
    file = tmp_path / "recipe.yaml"
    recipe = f"model: {model}\ndata: {{train: x.jsonl}}\nparallel: {{sequence: 2}}\ndeepspeed:\n  {key}\n"
    file.write_text(f"{recipe}  zero_optimization: {{stage: 3}}\n")
    code, out, _ = zerokit("resolve", "--recipe", file, "--num-gpus", 2, "--format", "json")
    (only,) = json.loads(out)["refused"]
    assert (code, only[: len(message)]) == (1, message)
    code, out, _ = zerokit("resolve", "--recipe", file, "--num-gpus", 2)
    (line,) = (line for line in out.splitlines() if line.startswith("refused: "))
    assert line.startswith(f"refused: {only}. Remove it")
    from zerokit.training.arguments import resolve_arguments

    place = GroupPlace(0, 2, Parallelism(2))
    with pytest.raises(ConfigError, match=re.escape(only)) as error:
        resolve_arguments(load_recipe(file), place=place, default_precision="fp32")
    assert str(error.value.hint).startswith("Remove it")


def test_groups_of_a_recipe_that_do_not_divide_the_gpus_are_refused_once(
    zerokit: Run, model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(f"model: {model}\ndata: {{train: x.jsonl}}\nparallel: {{tensor: 3}}\n")
    code, out, _ = zerokit("resolve", "--recipe", file, "--num-gpus", 2, "--format", "json")
    assert (code, json.loads(out)["refused"]) == (1, ["2 GPUs do not divide into groups of 3 of tensor parallelism"])


def test_the_optimizer_that_a_recipe_names_is_in_its_ds_config(zerokit: Run, model: Path, tmp_path: Path) -> None:
    recipe, offloaded = tmp_path / "recipe.yaml", tmp_path / "ds.json"
    lines = f"model: {model}\ndata: {{train: x.jsonl}}\ntraining: {{optim: NAME, learning_rate: 1.0e-4}}\n"
    offloaded.write_text('{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}')
    recipe.write_text(lines.replace("NAME", "deepspeed_lion"))
    words = (offloaded, "--recipe", recipe, "--num-gpus", 2, "--format", "json")
    code, out, err = zerokit("resolve", *words)
    assert (code, err) == (0, "")
    assert values(out)["optimizer.type"]["value"] == "Lion"
    assert values(out)["optimizer.type"]["origin"] == "added"
    assert values(out)["optimizer.params.lr"]["value"] == 1e-4
    code, out, err = zerokit("check", *words)
    assert (code, err) == (0, "")
    assert "accelerate-optimizer-swap" not in out
    recipe.write_text(lines.replace("NAME", "deepspeed_lamb"))
    assert f"{recipe}:3 (training.optim): LAMB scales" in refused(zerokit, "resolve", *words)
    assert f"{recipe}:3 (training.optim): LAMB scales" in refused(zerokit, "check", *words[:-2])


def test_a_recipe_gives_arguments_ds_config_and_model(zerokit: Run, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "model: {from_config: {model_type: llama, hidden_size: 64, intermediate_size: 128, vocab_size: 100,\n"
        "  num_hidden_layers: 2, num_attention_heads: 4}, tokenizer: x}\n"
        "data: {train: x.jsonl}\n"
        "training:\n  per_device_train_batch_size: 4\n  max_grad_norm: 0.5\n"
        "deepspeed:\n  zero_optimization:\n    stage: 2\n    reduce_bucket_size: auto\n"
    )
    code, out, err = zerokit("resolve", "--recipe", recipe, "--num-gpus", 2, "--format", "json")
    found = values(out)
    assert (code, err) == (0, "")
    assert found["train_batch_size"]["value"] == 8
    assert found["gradient_clipping"]["value"] == 0.5
    assert f"{recipe}:6" in found["gradient_clipping"]["detail"]
    assert found["zero_optimization.stage"]["line"] == 9
    assert found["zero_optimization.reduce_bucket_size"]["value"] == 64**2
    code, out, _ = zerokit(
        *("resolve", FOLDER / "zero3.json", "--recipe", recipe, "--num-gpus", 2, "--format", "json")
    )
    assert (code, values(out)["zero_optimization.stage"]["value"]) == (0, 3)
    code, out, err = zerokit("resolve", "--recipe", recipe, "--format", "json")
    assert (code, json.loads(out)["num_gpus"], values(out)["train_batch_size"]["value"]) == (0, 1, 4)
    assert err == "for 1 GPU, as --num-gpus does not say how many\n"


def test_what_is_lost_and_refused_is_said_and_gives_1(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    settings = '"gradient_clipping": 0.5, "bf16": {"enabled": true}'
    file.write_text(f'{{{settings},\n "zero_optimization": {{"stage": 2, "sub_group_size": 5}}}}')
    words = ("resolve", file, "--num-gpus", 1, "--argument", "gradient_accumulation_steps=4")
    code, out, _ = zerokit(*words)
    assert code == 1
    lines = out.splitlines()
    assert "lost: gradient_accumulation_steps: 'gradient_accumulation_steps' is absent, so" in out
    assert any(
        line.startswith("lost: zero_optimization.sub_group_size (line 2): it acts in ZeRO stage 3") for line in lines
    )
    hint = 'Make them equal, or write "auto" in the ds_config'
    clipping = "the ds_config has gradient_clipping 0.5, TrainingArguments 1.0 (max_grad_norm)"
    precision = "the ds_config has bf16.enabled true, TrainingArguments false (bf16 and bf16_full_eval)"
    assert {f"refused: {clipping}. {hint}", f"refused: {precision}. {hint}"} <= set(lines)
    code, out, _ = zerokit(*words, "--format", "json")
    assert code == 1
    assert {one["name"] for one in json.loads(out)["lost"]} == {
        "gradient_accumulation_steps",
        "zero_optimization.sub_group_size",
    }


ZERO2 = FOLDER / "zero2.json"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-gpus", 2], "Missing argument 'FILE'. Give it, or name a recipe with --recipe"),
        ([ZERO2, "--num-gpus", 0], "--num-gpus"),
        (["absent.json", "--num-gpus", 2], "absent.json: no such file"),
        (["docs/recipes/long_context.yaml"], "'zerokit resolve --recipe docs/recipes/long_context.yaml' prints"),
        ([ZERO2, "--num-gpus", 2, "--argument", "bf16"], "'bf16' is not NAME=VALUE"),
        ([ZERO2, "--num-gpus", 2, "--argument", "bf17=true"], "Did you mean 'bf16'"),
        ([ZERO2, "--num-gpus", 2, "--argument", "bf16=1"], "1 is not true or false"),
        ([ZERO2, "--num-gpus", 2, "--argument", "learning_rate=fast"], "'fast' is not a number"),
        ([ZERO2, "--num-gpus", 2, "--target", "accelerate", "--argument", "mixed_precision=int8"], "no precision"),
        ([ZERO2, "--num-gpus", 2, "--recipe", "absent.yaml"], "absent.yaml: no such file"),
        ([ZERO2, "--num-gpus", 2, "--recipe", "r.yaml", "--target", "accelerate"], "not by accelerate"),
    ],
)
def test_unusable_input_is_one_line_and_2(zerokit: Run, words: list[object], message: str) -> None:
    assert message in refused(zerokit, "resolve", *words)


def test_it_goes_on_past_what_nobody_reads_and_refuses_what_check_refuses(zerokit: Run, tmp_path: Path) -> None:
    (tmp_path / "ds.jsonc").write_text(
        '{"train_micro_batch_size_per_gpu": 8, // of one GPU\n"gradient_cliping": 1,\n'
        '"fp16": {"enabled": "true"}, "zero_optimization": {"stage": 2, "cpu_offload": true}}'
    )
    words = ("resolve", tmp_path / "ds.jsonc", "--argument", "fp16=true")
    code, out, _ = zerokit(*words)
    assert code == 1
    assert "lost: gradient_cliping (line 2): DeepSpeed does not read it. Did you mean" in out
    refused = [line for line in out.splitlines() if line.startswith("refused")]
    for text in ("not plain JSON", "differs from its argument, and stops", "does not see 'cpu_offload'"):
        assert any(text in line for line in refused), text
    code, out, _ = zerokit(*words[:2], "--target", "deepspeed", "--format", "json")
    assert (code, json.loads(out)["refused"], json.loads(out)["num_gpus"]) == (0, [], 1)


def test_a_value_that_is_not_known_says_which_option_fills_it(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    zero = {"stage": 3, "reduce_bucket_size": "auto"}
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": "auto", "zero_optimization": zero}))
    for target, options in (("trainer", "--model"), ("accelerate", "--argument NAME=VALUE and --model")):
        _, out, _ = zerokit("resolve", file, "--target", target, "--num-gpus", 1)
        assert f"?: not known. Fill it with {options} MODEL" in out


def test_mixed_precision_may_be_no(zerokit: Run) -> None:
    words = ("--target", "accelerate", "--argument", "mixed_precision=no", "--argument", "batch_size=2")
    code, out, _ = zerokit("resolve", ZERO2, "--num-gpus", 2, *words, "--format", "json", "--model", "gpt2")
    assert (code, values(out)["bf16.enabled"]["value"]) == (0, False)


def test_fp32_by_default_says_what_estimate_and_train_assume(zerokit: Run, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "auto"}}')
    words = "zerokit estimate and zerokit train assume bf16"
    assert words in zerokit("resolve", file)[1]
    assert words not in zerokit("resolve", file, "--argument", "bf16=true")[1]
    file.write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": false}}')
    assert words not in zerokit("resolve", file)[1]


LAUNCH = """distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
"""


def test_a_launch_file_is_the_ds_config_that_accelerate_makes(zerokit: Run, tmp_path: Path) -> None:
    launch, twin = tmp_path / "launch.yaml", tmp_path / "twin.json"
    launch.write_text(LAUNCH)
    _, out, _ = zerokit("resolve", launch, "--target", "accelerate", "--num-gpus", 8, "--format", "json")
    values = {value["path"]: (value["value"], value["line"]) for value in json.loads(out)["values"]}
    assert values["zero_optimization.stage"] == (3, 5)
    assert values["zero_optimization.offload_optimizer.device"] == ("cpu", 6)
    assert values["bf16.enabled"] == (True, 2)
    assert json.loads(out)["lost"] == []
    twin.write_text(
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", '
        '"gradient_accumulation_steps": "auto", "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}'
    )
    assert zerokit("diff", launch, twin)[0] == 0
    numbers = ("--num-gpus", 8, "--micro-batch-size", 1, "--seq-len", 512, "--format", "json")
    memory = [zerokit("estimate", "llama-3.1-8b", "--ds-config", file, *numbers) for file in (launch, twin)]
    assert memory[0][1] == memory[1][1] != ""


@pytest.mark.parametrize("command", ["resolve", "diff"])
def test_a_launch_file_without_deepspeed_is_refused_in_a_line(zerokit: Run, tmp_path: Path, command: str) -> None:
    launch = tmp_path / "fsdp.yaml"
    launch.write_text(LAUNCH.replace("DEEPSPEED", "FSDP"))
    files = [launch] * (2 if command == "diff" else 1)
    assert "starts FSDP, not DeepSpeed" in refused(zerokit, command, *files)


def test_a_launch_file_leads_to_the_ds_config_that_it_names(zerokit: Run, tmp_path: Path) -> None:
    launch = tmp_path / "launch.yaml"
    launch.write_text("distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n")
    assert "names 'ds.json', which is not here" in refused(zerokit, "resolve", launch)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 4, "zero_optimization": {"stage": 1}}')
    _, out, _ = zerokit("resolve", launch, "--num-gpus", 4)
    assert "ds.json, line 1" in out
