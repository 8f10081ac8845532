from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from zerokit.config import check_ds_config, load_ds_config
from zerokit.config.removed import REMOVED_KEYS
from zerokit.documents import Document, parse_json
from zerokit.errors import ConfigError, DocumentError


def problem_of(data: Any) -> tuple[tuple[str | int, ...], str, str | None]:
    (problem,) = check_ds_config(Document(data, "ds.json"))
    return problem.path, problem.message, problem.hint


@pytest.mark.parametrize(
    ("data", "key", "hint"),
    [
        ({"gradient_cliping": 1.0}, "gradient_cliping", "Did you mean 'gradient_clipping'?"),
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation", "Did you mean 'zero_optimization'?"),
        ({"stage": 3}, "stage", "It belongs in 'zero_optimization'"),
        ({"offload_optimizer": {}}, "offload_optimizer", "It belongs in 'zero_optimization'"),
        (
            {"zero_optimization": {"gradient_clipping": 1}},
            "gradient_clipping",
            "It belongs at the top of the file",
        ),
        ({"zero_optimization": {"aio": {}}}, "aio", "It belongs at the top of the file"),
        ({"bf16": {"loss_scale": 0}}, "loss_scale", "It belongs in 'fp16'"),
        ({"optimizer": {"type": "AdamW", "lr": 1e-3}}, "lr", "It belongs in 'optimizer.params'"),
        ({"optimizer": {"type": "AdamW", "param": {}}}, "param", "Did you mean 'params'?"),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "Did you mean 'gradient_clipping'?"),
        (
            {"per_device_train_batch_size": 1},
            "per_device_train_batch_size",
            "Did you mean 'train_micro_batch_size_per_gpu'?",
        ),
        ({"zero_optimization": {"overlap_com": True}}, "overlap_com", "Did you mean 'overlap_comm'?"),
        ({"aio": {"blocksize": 1}}, "blocksize", "Did you mean 'block_size'?"),
        ({"aio": {"thread_count": 1}}, "thread_count", "Did you mean 'aio.intra_op_parallelism'?"),
    ],
)
def test_unknown_keys_are_named_with_what_was_meant(data: dict[str, Any], key: str, hint: str) -> None:
    path, message, found = problem_of(data)
    assert path[-1] == key
    assert message == f"unknown key '{key}'"
    assert found == hint


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ({"train_batch_size": "8"}, "whole number, not the string", "Remove the quotes"),
        ({"train_batch_size": 2.5}, "whole number, not 2.5", "Write a whole number"),
        ({"train_batch_size": True}, "whole number, not true", "Write a whole number"),
        ({"train_batch_size": 0}, "at least 1, not 0", "at least 1"),
        ({"train_batch_size": "Auto"}, "not the string", 'Write "auto" in lower case'),
        ({"gradient_clipping": -1}, "at least 0, not -1", "at least 0"),
        ({"gradient_clipping": None}, "a number, not null", "remove the key for DeepSpeed's default, 1.0"),
        ({"gradient_clipping": float("nan")}, "finite number, not nan", "finite"),
        (
            {"zero_optimization": {"overlap_comm": "false"}},
            "true or false, not the string",
            "Remove the quotes",
        ),
        ({"zero_optimization": {"overlap_comm": 1}}, "true or false, not 1", "Write true"),
        ({"zero_optimization": {"stage": "3"}}, "one of 0, 1, 2, 3", "Remove the quotes"),
        ({"zero_optimization": {"stage": 4}}, "one of 0, 1, 2, 3", "Write one of them"),
        ({"zero_optimization": {"stage": True}}, "one of 0, 1, 2, 3", "Write one of them"),
        ({"zero_optimization": 2}, "a section {...}, not 2", 'Write {"stage": 2}'),
        ({"zero_optimization": {"offload_param": {"device": "CPU"}}}, 'one of "none", "cpu"', "mean 'cpu'"),
        ({"zero_optimization": {"sub_group_size": 1e19}}, "whole number, not 1e+19", "whole number"),
        ({"bf16": True}, "a section {...}, not true", 'Write {"enabled": true}'),
        ({"fp16": None}, "a section {...}, not null", "remove the key"),
        ({"optimizer": None}, "a section {...}, not null", "remove the key"),
        ({"wandb": None}, "a section {...}, not null", "remove the key"),
        ({"activation_checkpointing": {"cpu_checkpointing": "auto"}}, "nobody fills in", "default, false"),
        ({"optimizer": {"params": {}}}, "'type' is missing from 'optimizer'", "ignores the whole section"),
        ({"scheduler": {"type": "WarmupLR"}}, "'params' is missing from 'scheduler'", "fails"),
        ({"optimizer": {"type": "OneBitAdam"}}, "no optimizer 'OneBitAdam'", "removed; use Adam"),
        ({"optimizer": {"type": "sgd"}}, "no optimizer 'sgd'", "Did you mean 'SGD'?"),
        ({"scheduler": {"type": "warmuplr", "params": {}}}, "no scheduler", "Did you mean 'WarmupLR'?"),
        ({"optimizer": {"type": "Adam", "params": {"lr": "1e-3"}}}, "'lr' is a number", "Remove the quotes"),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}},
            "no parameter",
            "gradient_clipping",
        ),
        ({"bf16": {}, "bfloat16": {}}, "two names of one key", "Remove one of them"),
        ({3: 1}, "is not a string", "double quotes"),
        ([], "must be a section {...}", "section"),
    ],
)
def test_values_are_named_in_plain_words(data: Any, message: str, hint: str) -> None:
    _, found, mend = problem_of(data)
    assert message in found
    assert mend is not None
    assert hint in mend
    assert "\n" not in found + mend


@pytest.mark.parametrize("path", REMOVED_KEYS)
def test_keys_that_deepspeed_refuses_are_refused_whatever_their_value(path: tuple[str, ...]) -> None:
    data: Any = False
    for key in reversed(path):
        data = {key: data}
    found, message, hint = problem_of(data)
    assert found == path
    assert "refused by DeepSpeed" in message
    assert hint


@pytest.mark.parametrize(
    "data",
    [
        {
            "train_batch_size": None,
            "steps_per_print": None,
            "bf16": None,
            "aio": None,
            "expert_parallel": None,
        },
        {"zero_optimization": {"offload_param": None, "leaf_module": None, "reduce_bucket_size": 5e8}},
        {"optimizer": {"type": "adamw"}},
        {"optimizer": {"type": "SGD", "params": {"lr": 1e-3, "nesterov": True}}},
        {"communication_data_type": "FP32"},
        {"datastates_ckpt": False},
        {"zero_optimization": {"leaf_module": {"classes": "A"}}},
    ],
)
def test_what_deepspeed_takes_in_earnest_is_taken(data: dict[str, Any]) -> None:
    assert check_ds_config(Document(data, "ds.json")) == []


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = (
        '{\n"zero_optimization": {\n"stage": "2",\n"offload_param": {"devise": 1}},\n'
        '"fp17": {},\n"steps_per_print": 0}'
    )
    problems = check_ds_config(parse_json(text, "ds.json"))
    assert [problem.line for problem in problems] == [3, 4, 5, 6]


def test_loading_raises_one_line_with_the_first_problem_and_the_number_of_others(tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    file.write_text('{\n  "gradient_cliping": 1.0,\n  "stage": 2\n}')
    with pytest.raises(ConfigError) as caught:
        load_ds_config(file)
    expected = "unknown key 'gradient_cliping' (and 1 more). Did you mean 'gradient_clipping'?"
    assert str(caught.value) == f"{file}:2 (gradient_cliping): {expected}"


def test_loading_takes_paths_as_text_and_any_mapping(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    from_file = load_ds_config(str(tmp_path / "ds.json"))
    assert from_file == load_ds_config(
        MappingProxyType({"zero_optimization": MappingProxyType({"stage": 2})})
    )
    with pytest.raises(DocumentError, match="no such file"):
        load_ds_config(tmp_path / "absent.json")
