"""The recipe's training keys, checked against TrainingArguments before anything is loaded."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import typing
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from pydantic import TypeAdapter, ValidationError
from transformers import TrainingArguments

from tests.tiny import REPOSITORY
from zerokit.cli.main import main
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.errors import ConfigError, RecipeError, ZerokitError
from zerokit.recipe import LoadedRecipe, load_recipe
from zerokit.recipe.trainer_keys import OWNED, WITHOUT_EFFECT, installed_types
from zerokit.recipe.training_keys import check_without_imports
from zerokit.training.arguments import build_arguments, check_fp16, check_precision, resolve_arguments
from zerokit.training.trackers import trackers

MINIMAL = "model: org/name\ndata:\n  train: x.jsonl\n"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """A recipe that sets nothing it need not."""
    file = tmp_path / "recipe.yaml"
    file.write_text(MINIMAL)
    return file


def with_training(file: Path, text: str) -> LoadedRecipe:
    file.write_text(f"{MINIMAL}training:\n  {text}\n")
    return load_recipe(file)


def check_training_keys(loaded: LoadedRecipe) -> dict[str, Any]:
    return check_without_imports(loaded.recipe.training, loaded.origins)


def resolve(loaded: LoadedRecipe, **options: Any) -> Any:
    return resolve_arguments(loaded, **{"place": GroupPlace(), "default_precision": "fp32", **options})


def test_every_key_of_training_arguments_has_a_type_to_check_against() -> None:
    hints = typing.get_type_hints(TrainingArguments)
    for field in dataclasses.fields(TrainingArguments):
        if field.init:
            TypeAdapter(hints[field.name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "is not a TrainingArguments key. Did you mean 'learning_rate'?"),
        ("lr: 1", "is not a TrainingArguments key. It is called learning_rate"),
        ("warmup_ratio: 0.1", "It is called warmup_steps"),
        ("learning_rate: abc", 'expected a number, found the string "abc". Change'),
        ("max_steps: '1,000'", 'expected a whole number, found the string "1,000". Write 1000'),
        ("learning_rate: null", "expected a number, found null"),
        ("max_steps: 1.5", "expected a whole number, found 1.5"),
        ("max_steps: 0", "max_steps is 0. Make it at least 1, or remove it"),
        ("num_train_epochs: 0", "num_train_epochs is 0. Make it at least 0.001"),
        ("learning_rate: 0", "learning_rate is 0, which trains nothing. Make it more than 0"),
        ("save_steps: 0", "save_steps is 0, by which nothing is saved before the end. Make it more than 0"),
        ("num_train_epochs: [1]", "expected a number, found [1]"),
        ("sample_prompts: 5", "expected text, found 5"),
        ("bf16: maybe", 'expected true or false, found the string "maybe"'),
        ("report_to: 5", "expected text or a list, found 5"),
        ("log_level: loud", "'loud' is not a choice here. Write 'detail', 'debug', 'info', 'w"),
        ("train_sampling_strategy: by_size", "Write 'random', 'sequential', 'gr"),
        ("include_num_input_tokens_seen: some", "or 'all', 'non_padding'"),
        ("dataloader_prefetch_factor: 0", "Make it at least 1"),
        ("neftune_noise_alpha: -1", "Make it at least 0"),
        ("on_spike: no", "False is not a choice here. Write 'note' or 'stop'"),
        ("deepspeed: ds.json", "Put it in the section 'deepspeed' of the recipe"),
        ("fsdp: full_shard", "zerokit runs DeepSpeed ZeRO"),
        ("local_rank: 0", "The launcher sets it"),
        ("overwrite_output_dir: true", "Replace an earlier run with --force"),
        ("past_index: 1", "transformers 5 has no such argument"),
        ("auto_find_batch_size: true", "Set per_device_train_batch_size: 'zerokit e"),
        ("bf16_full_eval: true", "Evaluation runs in the precision of training"),
        ("per_device_train_batch_size: 0", "Make it at least 1"),
        ("gradient_accumulation_steps: 0", "Make it at least 1"),
        ("dataloader_num_workers: -1", "Make it at least 0"),
        ("learning_rate: -1", "learning_rate is -1. Make it at least 0"),
        ("learning_rate: .nan", "learning_rate is nan. Make it at least 0"),
        ("hub_token: hf_x", "'hub_token' is not set here. Log in with 'hf auth login'; remove it"),
        ("label_smoothing_factor: 1.5", "Make it less than 1"),
        ("label_smoothing_factor: -1", "Make it at least 0"),
        ("seed: -1", "Make it at least 0"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_line(text: str, message: str, recipe_file: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        check_training_keys(with_training(recipe_file, text))
    assert caught.value.where == f"{recipe_file}:5 (training.{text.partition(':')[0]})"
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


READ_BY = {
    "trainer.py": (
        *("output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "learning_rate"),
        *("lr_scheduler_type", "lr_scheduler_kwargs", "optim", "optim_args", "weight_decay", "adam_beta1"),
        *("adam_beta2", "adam_epsilon", "gradient_accumulation_steps", "average_tokens_across_devices"),
        *("bf16", "fp16", "activation_checkpointing", "activation_checkpointing_kwargs", "torch_compile"),
        *("torch_compile_backend", "torch_compile_mode", "use_liger_kernel", "liger_kernel_config"),
        *("neftune_noise_alpha", "torch_empty_cache_steps", "logging_nan_inf_filter", "report_to"),
        *("include_num_input_tokens_seen", "eval_on_start", "save_only_model", "save_strategy"),
        *("load_best_model_at_end", "ignore_data_skip", "full_determinism", "seed", "data_seed"),
        *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_in_order"),
        *("dataloader_persistent_workers", "dataloader_prefetch_factor", "skip_memory_metrics", "debug"),
        "dataloader_multiprocessing_context",
    ),
    "trainer_optimizer.py": ("optim_target_modules", "warmup_steps"),
    "trainer_callback.py": (
        *("logging_strategy", "logging_first_step", "eval_strategy", "eval_delay", "greater_is_better"),
    ),
    "trainer_utils.py": ("logging_steps", "eval_steps", "save_steps"),
    # TrainingArguments themselves: a newer name of checkpointing, torch's switch, the level of messages.
    "training_args.py": (
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "tf32", "log_level"),
        *("log_level_replica", "log_on_each_node"),
    ),
    "integrations/deepspeed.py": ("max_grad_norm",),
    "integrations/integration_utils.py": (
        *("run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        "hub_private_repo",
    ),
    "zerokit/training/trainer.py": (
        *("label_smoothing_factor", "metric_for_best_model"),
        *("per_device_eval_batch_size", "save_total_limit"),
    ),
    "zerokit/training/batch_source.py": ("train_sampling_strategy",),
    "zerokit/training/prepare.py": ("resume_from_checkpoint",),
}
"""A file of transformers or zerokit -> the fields of TrainingArguments that act in a run because of it."""


def test_every_field_of_training_arguments_acts_or_is_refused() -> None:
    """A new field of a new release has no place in these tables: find out whether it acts, and add it."""
    acting = {name: file for file, names in READ_BY.items() for name in names}
    refused = {*OWNED, *WITHOUT_EFFECT}
    assert acting.keys() & refused == set()
    fields = {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    assert fields - acting.keys() - refused == set()
    for name in fields & acting.keys():
        folder = REPOSITORY if acting[name].startswith("zerokit/") else Path(transformers.__file__).parent
        text = (folder / acting[name]).read_text()
        assert re.search(rf'(self|args)\.{name}\b|"{name}"', text), (name, acting[name])


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_key_without_effect_is_refused_but_for_what_is_done_anyway(name: str, recipe_file: Path) -> None:
    harmless, hint = WITHOUT_EFFECT[name]
    loaded = with_training(recipe_file, f"{name}: {json.dumps(harmless)}")
    assert check_training_keys(loaded) == {name: harmless}
    other = json.dumps(not harmless) if isinstance(harmless, bool) else "1"
    with pytest.raises(RecipeError) as caught:
        check_training_keys(with_training(recipe_file, f"{name}: {other}"))
    assert str(caught.value) == f"{recipe_file}:5 (training.{name}): {name} has no effect here. {hint}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gradient_checkpointing_kwargs: {use_reentrant: false}", "has no effect without gradient_checkpoin"),
        ("liger_kernel_config: {rope: false}", "has no effect without use_liger_kernel. Set use_liger_kernel"),
        ("dataloader_persistent_workers: true", "has no effect without dataloader_num_workers"),
        ("eval_delay: 4", "eval_delay has no effect without eval_strategy"),
        ("eval_delay: 4\n  eval_strategy: no", "eval_delay has no effect: eval_strategy is no"),
        ("save_total_limit: 3\n  save_strategy: no", "save_total_limit has no effect: save_strategy is no. Set save"),
        ("save_total_limit: 3\n  save_strategy: 'no'", "save_total_limit has no effect: save_strategy is no"),
        ("activation_offloading: true", "activation_offloading has no effect without gradient_checkpointing"),
    ],
)
def test_a_key_that_needs_another_is_refused_without_it(text: str, message: str, recipe_file: Path) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        check_training_keys(with_training(recipe_file, text))


@pytest.mark.parametrize(
    "text",
    [
        "eval_delay: 4\n  eval_strategy: epoch",
        "save_total_limit: 3",
        "save_total_limit: 3\n  save_strategy: epoch",
        "num_train_epochs: 2\n  max_steps: -1",
        "gradient_checkpointing: true\n  activation_checkpointing_kwargs: {use_reentrant: false}",
    ],
)
def test_a_key_that_acts_is_accepted(text: str, recipe_file: Path) -> None:
    assert check_training_keys(with_training(recipe_file, text))


@pytest.mark.parametrize(
    ("text", "option", "refused"),
    [
        ("num_train_epochs: 7\n  max_steps: 3", (), True),
        ("num_train_epochs: 7", ("max_steps", "3"), False),  # the later word counts
        ("max_steps: 3", ("num_train_epochs", "7"), True),
        ("save_total_limit: 3", ("save_strategy", "no"), False),
        ("save_strategy: no", ("save_total_limit", "3"), True),
    ],
)
def test_an_option_may_leave_a_key_of_the_recipe_without_effect(
    text: str, option: tuple[str, ...], refused: bool, recipe_file: Path
) -> None:
    with_training(recipe_file, text)
    words = [f"--training.{option[0]}", option[1]] if option else []
    loaded = load_recipe(recipe_file, words)
    if not refused:
        check_training_keys(loaded)
        return
    with pytest.raises(RecipeError, match="has no effect"):
        check_training_keys(loaded)


def test_the_name_of_a_run_is_refused_without_a_tracker_that_reads_it(recipe_file: Path) -> None:
    with pytest.raises(RecipeError, match="run_name has no effect without wandb or ") as caught:
        trackers(with_training(recipe_file, "run_name: foo\n  report_to: []"))
    assert caught.value.where == f"{recipe_file}:5 (training.run_name)"
    assert trackers(with_training(recipe_file, "run_name: foo\n  report_to: all")) == ("all",)
    with pytest.raises(RecipeError, match=r"project has no effect without trackio. Add trackio to training"):
        trackers(with_training(recipe_file, "project: mine"))
    with_training(recipe_file, "run_name: foo\n  report_to: all")
    assert trackers(load_recipe(recipe_file, ["--training.report_to", "none"])) == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("learning_rate: 1e-5", 1e-5),
        ("learning_rate: 1", 1.0),
        ("bf16: true", True),
        ("report_to: [a, b]", ["a", "b"]),
        ("save_strategy: no", "no"),  # which YAML reads as false
        ("lr_scheduler_kwargs: {num_cycles: 2}", {"num_cycles": 2}),
        ("sample_prompts: /prompts.txt", "/prompts.txt"),  # zerokit's own
    ],
)
def test_right_values_are_passed_on(text: str, value: Any, recipe_file: Path) -> None:
    (checked,) = check_training_keys(with_training(recipe_file, text)).values()
    assert checked == value
    assert type(checked) is type(value)


@pytest.mark.parametrize(
    ("text", "words", "strategy"),
    [
        ("save_steps: 5", [], "steps"),
        ("eval_steps: 5", [], "steps"),
        ("save_strategy: 'no'", ["--training.save_steps", "5"], "steps"),
        ("save_steps: 5", ["--training.save_strategy", "no"], "no"),
        ("save_steps: 5\n  save_strategy: steps", [], "steps"),
        ("save_steps: 5\n  save_strategy: epoch", ["--training.max_steps", "3"], "save_steps would have no effect"),
        ("eval_steps: 5\n  eval_strategy: no", [], "eval_steps would have no effect: eval_strategy is no"),
    ],
)
def test_steps_act_or_are_refused(
    text: str, words: list[str], strategy: str, recipe_file: Path, tmp_path: Path
) -> None:
    with_training(recipe_file, text)
    loaded = load_recipe(recipe_file, [*words, "--training.output_dir", str(tmp_path), "--data.eval", "e.jsonl"])
    if "no effect" in strategy:
        with pytest.raises(RecipeError, match=strategy):
            resolve(loaded)
        return
    kind = text[:4]
    args = build_arguments(resolve(loaded), loaded, GroupPlace(), use_cpu=True, evaluate=True)
    assert getattr(args, f"{kind}_strategy") == strategy
    assert getattr(args, f"{kind}_steps") == 5


def test_the_fields_are_known_from_the_source_of_transformers() -> None:
    hints = typing.get_type_hints(TrainingArguments)
    types = installed_types()
    assert types is not None
    assert set(types) == {field.name for field in dataclasses.fields(TrainingArguments) if field.init}
    for name in set(types) - {"parallelism_config"}:  # an object of Python
        for value in (None, True, 3, 0.5, "x", "1", {"a": True}):
            took = [_takes(kind[name], value) for kind in (types, hints)]
            assert took[0] == took[1], (name, value)


def _takes(kind: Any, value: Any) -> bool:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def test_a_null_output_dir_means_the_default(recipe_file: Path) -> None:
    resolved = resolve(with_training(recipe_file, "output_dir: null"))
    assert resolved.training["output_dir"] == "runs/train"


def test_without_a_ds_config_it_is_zero_2_with_the_arguments_values(recipe_file: Path) -> None:
    resolved = resolve(load_recipe(recipe_file), default_precision="bf16")
    assert resolved.ds_config["zero_optimization"]["stage"] == 2
    assert resolved.ds_config["gradient_clipping"] == "auto"
    assert resolved.training["bf16"] is True
    assert resolved.training["logging_steps"] == 10


def test_a_ds_config_file_is_named_in_a_contradiction(recipe_file: Path, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"gradient_clipping": 0.5}))
    with_training(recipe_file, "max_grad_norm: 1.0")
    with pytest.raises(ConfigError) as caught:
        resolve(load_recipe(recipe_file, ["--deepspeed", str(file)]))
    assert caught.value.where == f"{recipe_file}:5 (training.max_grad_norm)"
    assert str(file) in caught.value.message


def test_an_inline_ds_config_is_named_by_its_line_in_a_contradiction(recipe_file: Path) -> None:
    recipe_file.write_text(MINIMAL + "deepspeed:\n  gradient_clipping: 0.5\n")
    with pytest.raises(ConfigError) as caught:
        resolve(load_recipe(recipe_file, ["--training.max_grad_norm", "1.0"]))
    assert caught.value.where == "--training.max_grad_norm"
    assert f"{recipe_file}:4 (deepspeed)" in caught.value.message


@pytest.mark.parametrize(
    ("ds_config", "recipe", "world_size"),
    [
        ({"gradient_cliping": 1.0, "zero_optimization": {"stag": 3}}, "", 1),
        # Of four ranks a step has a multiple of 16.
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stag": 3}}, "", 4),
        # In the ds_config only as the recipe has it written there.
        (
            {"zero_optimization": {"stage": 0, "stag": 3}, "fp16": {"enabled": True, "loss_scale": 128}},
            "training:\n  optim: deepspeed_lamb\n",
            1,
        ),
    ],
    ids=["unknown keys", "ranks", "optimizer"],
)
def test_mistakes_in_a_ds_config_are_named_with_what_names_all(
    ds_config: dict[str, Any],
    recipe: str,
    world_size: int,
    recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = recipe_file.with_name("ds.json")
    file.write_text(json.dumps(ds_config))
    recipe_file.write_text(MINIMAL + recipe)
    with pytest.raises(ConfigError) as caught:
        resolve(load_recipe(recipe_file, ["--deepspeed", str(file)]), place=GroupPlace(0, world_size))
    more = re.search(r"\(and (\d+) more\)", str(caught.value))
    command = re.search(r"zerokit (check .+) names all$", str(caught.value))
    assert more is not None
    assert command is not None
    monkeypatch.setattr("sys.argv", ["zerokit", *shlex.split(command[1]), "--format", "json"])
    with pytest.raises(SystemExit):
        main()
    (checked,) = json.loads(capsys.readouterr().out)["files"]
    errors = [one["message"] for one in checked["findings"] if one["severity"] == "error"]
    assert len(errors) == 1 + int(more[1])


def test_a_mistake_in_an_inline_ds_config_is_named_by_its_place_in_the_recipe(recipe_file: Path) -> None:
    recipe_file.write_text(MINIMAL + "deepspeed:\n  zero_optimization:\n    stag: 3\n  bfp16: {}\n")
    with pytest.raises(ConfigError) as caught:
        resolve(load_recipe(recipe_file))
    assert caught.value.where == f"{recipe_file}:6 (deepspeed.zero_optimization.stag)"
    assert str(caught.value).endswith("unknown key 'stag' (and 1 more). Did you mean 'stage'?")


def test_a_mistake_in_an_override_of_the_ds_config_names_the_option(recipe_file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(load_recipe(recipe_file, ["--deepspeed.zero_optimization.stage", "7"]))
    assert caught.value.where == "--deepspeed.zero_optimization.stage"


def test_a_missing_ds_config_file_is_named(recipe_file: Path) -> None:
    with pytest.raises(ZerokitError, match=r"none\.json: no such file"):
        resolve(load_recipe(recipe_file, ["--deepspeed", "none.json"]))


@pytest.fixture
def _without_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """TrainingArguments that do not open a process group."""

    def without_deepspeed(*, deepspeed: Any, **keys: Any) -> TrainingArguments:
        assert isinstance(deepspeed, dict)
        return TrainingArguments(**keys)

    monkeypatch.setattr(transformers, "TrainingArguments", without_deepspeed)


def build(loaded: LoadedRecipe, *, evaluate: bool = True) -> TrainingArguments:
    # Resolved by hand: what it resolves to is tested elsewhere.
    from zerokit.resolving.contradictions import Resolved

    return build_arguments(
        Resolved({}, dict(loaded.recipe.training)), loaded, GroupPlace(), use_cpu=True, evaluate=evaluate
    )


@pytest.mark.usefixtures("_without_deepspeed")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr_scheduler_type: foo", "foo is not a valid SchedulerType"),
        ("optim: foo", "foo is not a valid OptimizerNames"),
        ("eval_strategy: foo", "foo is not a valid IntervalStrategy"),
        ("warmup_steps: -3", "Expected value warmup_steps >= 0"),
        ("logging_steps: 0", "requires non-zero --logging_steps"),
        ("accelerator_config: {foo: 1}", "'foo'"),
    ],
)
def test_what_training_arguments_refuse_is_a_recipe_error(text: str, message: str, recipe_file: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        build(with_training(recipe_file, text))
    # By the key where the words of transformers name it, or its value.
    key = text.partition(":")[0]
    named = key != "accelerator_config"
    assert caught.value.where == f"{recipe_file}:{f'5 (training.{key})' if named else '4 (training)'}"
    assert message in caught.value.message
    assert "\n" not in str(caught.value)


def test_what_a_run_cannot_report_to_is_named(recipe_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    installed = {"tensorboardX"}
    monkeypatch.setattr("zerokit.training.trackers.find_spec", lambda name: name in installed or None)
    assert trackers(with_training(recipe_file, "report_to: [tensorboard, all]")) == ("tensorboard", "all")
    with pytest.raises(RecipeError, match=r"'tensorbord' is nothing .*\. Did you mean 'tensorboard'\?"):
        trackers(with_training(recipe_file, "report_to: tensorbord"))
    installed.clear()
    for name in INTEGRATION_TO_CALLBACK.keys() - {"kubeflow"}:  # which is where its environment is
        with pytest.raises(RecipeError, match=r"(?i)training\.report_to\): .* is not installed\. Run pip in"):
            trackers(with_training(recipe_file, f"report_to: {name}"))


@pytest.mark.usefixtures("_without_deepspeed")
def test_held_out_data_is_evaluated_before_training_unless_told_otherwise(recipe_file: Path) -> None:
    assert build(load_recipe(recipe_file)).eval_on_start is True
    assert build(load_recipe(recipe_file), evaluate=False).eval_on_start is False
    assert build(with_training(recipe_file, "eval_on_start: false")).eval_on_start is False


@pytest.mark.usefixtures("_without_deepspeed")
@pytest.mark.parametrize(
    "text",
    [
        *("eval_strategy: steps", "eval_on_start: true", "do_eval: true", "metric_for_best_model: f1"),
        "per_device_eval_batch_size: 3",
    ],
)
def test_evaluating_without_held_out_data_is_refused(text: str, recipe_file: Path) -> None:
    with pytest.raises(RecipeError, match="there is no held-out data") as caught:
        build(with_training(recipe_file, text), evaluate=False)
    assert caught.value.where == f"{recipe_file}:5 (training.{text.partition(':')[0]})"


@pytest.mark.usefixtures("_without_deepspeed")
def test_a_batch_size_of_evaluation_acts_in_dpo(recipe_file: Path) -> None:
    """It is that of the passes of the untrained model."""
    with_training(recipe_file, "per_device_eval_batch_size: 3")
    recipe_file.write_text(recipe_file.read_text() + "task: {type: dpo}\n")
    assert build(load_recipe(recipe_file), evaluate=False).per_device_eval_batch_size == 3


@pytest.mark.usefixtures("_without_deepspeed")
def test_evaluation_takes_the_batches_of_training(recipe_file: Path) -> None:
    assert build(with_training(recipe_file, "per_device_train_batch_size: 3")).per_device_eval_batch_size == 3
    both = "per_device_train_batch_size: 3\n  per_device_eval_batch_size: 5"
    assert build(with_training(recipe_file, both)).per_device_eval_batch_size == 5


@pytest.mark.usefixtures("_without_deepspeed")
@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_has_the_name_of_this_transformers(name: str, recipe_file: Path) -> None:
    args = build(with_training(recipe_file, f"{name}: true\n  {name}_kwargs: {{use_reentrant: false}}"))
    assert args.gradient_checkpointing is True
    assert args.gradient_checkpointing_kwargs == {"use_reentrant": False}


def with_ds(folder: Path, ds_config: dict[str, Any], *words: str) -> LoadedRecipe:
    file = folder / "ds.json"
    file.write_text(json.dumps(ds_config))
    (folder / "recipe.yaml").write_text(MINIMAL)
    return load_recipe(folder / "recipe.yaml", ["--deepspeed", str(file), *words])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "bf16-true"])
def test_one_key_says_the_precision_to_all(precision: str, tmp_path: Path) -> None:
    inline = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}
    resolved = resolve(with_ds(tmp_path, inline, "--precision", precision), default_precision="bf16")
    kind = precision.removesuffix("-true")
    config = resolved.ds_config
    for name in ("bf16", "fp16"):
        assert resolved.training[name] is (name == kind)
        assert config.get(name, {}).get("enabled", False) is (name == kind)
    is_whole = precision == "bf16-true"
    assert config["bf16"].get("bf16_master_weights_and_grads", False) is is_whole
    assert config["bf16"].get("bf16_optimizer_states", False) is is_whole


@pytest.mark.parametrize(
    ("ds_config", "words", "message"),
    [
        ({}, "--precision bf16 --training.fp16 true", "--training.fp16: fp16 is true, but"),
        ({"fp16": {"enabled": True}}, "--precision bf16", "has fp16.enabled True, TrainingArguments False"),
        ({"stage": 0}, "--precision bf16-true", "--precision: precision bf16-true needs ZeRO stage 1, 2 or 3"),
        (
            {"bf16": {"bf16_optimizer_states": False}},
            "--precision bf16-true",
            "--precision: precision is bf16-true, but bf16.bf16_optimizer_states in",
        ),
        ({}, "--matmul_precision high --training.tf32 true", "--training.tf32: says what"),
    ],
)
def test_another_precision_elsewhere_is_refused(
    ds_config: dict[str, Any], words: str, message: str, tmp_path: Path
) -> None:
    stage = ds_config.pop("stage", 2)
    with pytest.raises(ZerokitError) as caught:
        resolve(with_ds(tmp_path, {"zero_optimization": {"stage": stage}, **ds_config}, *words.split()))
    assert message in str(caught.value)


def test_fp16_for_a_checkpoint_in_bf16_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "dtype": "bfloat16"}')
    for words, refused in (
        (["--precision", "fp16"], True),
        (["--precision", "fp16", "--model.dtype", "float16"], False),
        (["--precision", "bf16"], False),
    ):
        loaded = load_recipe(None, ["--model", str(tmp_path), *words])
        resolved = resolve_arguments(loaded, place=GroupPlace(), default_precision="fp32")
        with pytest.raises(RecipeError, match="was trained in bf16") if refused else nullcontext():
            check_fp16(resolved, loaded, tmp_path)


def test_on_a_gpu_without_bf16_each_hint_leads_to_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(is_bf16_supported=lambda: False, is_fp16_supported=lambda: True)
    monkeypatch.setattr("deepspeed.accelerator.get_accelerator", lambda: old)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))

    def check(*words: str) -> str:
        loaded = load_recipe(None, [*words, "--model.path", str(tmp_path)])
        resolved = resolve_arguments(loaded, place=GroupPlace(), default_precision="fp16")
        try:
            check_precision(resolved, loaded)
            check_fp16(resolved, loaded, tmp_path)
        except RecipeError as error:
            return f"{error.where}: {error.hint}"
        return "runs"

    assert check("--precision", "bf16") == "--precision: Set precision to fp16 or fp32"
    assert check("--training.bf16", "true") == "--training.bf16: Set precision to fp16 or fp32"
    fp32 = "Set precision to fp32, or model.dtype to float16 if fp16 is meant"
    assert check("--training.fp16", "true") == f"--training.fp16: {fp32}"
    assert check().endswith(fp32)
    assert check("--precision", "fp32") == "runs"
