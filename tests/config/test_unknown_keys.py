from typing import Any

import pytest

from zerokit.config import check_ds_config, load_ds_config
from zerokit.config.load import load_valid_part
from zerokit.config.mistakes import MOST_LISTED
from zerokit.config.removed_keys import REMOVED_KEYS
from zerokit.config.repairs import edited
from zerokit.config.unknown_keys import Meaning
from zerokit.documents import Document, KeyPath, dotted
from zerokit.findings import Edit, Finding, Move, Remove
from zerokit.spelling import distance


def only(data: Any) -> Finding:
    (finding,) = check_ds_config(Document(data, "ds.json"))
    return finding


@pytest.mark.parametrize(
    ("data", "key", "hint"),
    [
        ({"gradient_cliping": 1.0}, "gradient_cliping", "Did you mean 'gradient_clipping'?"),
        ({"zero_optimisation": {"stage": 3}}, "zero_optimisation", "Did you mean 'zero_optimization'?"),
        ({"optimizer": {"type": "AdamW", "param": {}}}, "param", "Did you mean 'params'?"),
        ({"max_grad_norm": 1.0}, "max_grad_norm", "Did you mean 'gradient_clipping'?"),
        (
            {"per_device_train_batch_size": 1},
            "per_device_train_batch_size",
            "Did you mean 'train_micro_batch_size_per_gpu'?",
        ),
        ({"zero_optimization": {"overlap_com": True}}, "overlap_com", "Did you mean 'overlap_comm'?"),
        ({"aio": {"blocksize": 1}}, "blocksize", "Did you mean 'block_size'?"),
        ({"aio": {"thread_count": 1}}, "thread_count", "Did you mean 'intra_op_parallelism'?"),
        ({"timers": {"thruput": {}}}, "thruput", "Did you mean 'throughput'?"),
        ({"mixed_precision": "bf16"}, "mixed_precision", "Did you mean 'bf16.enabled'?"),
        ({"offload_optimiser": {}}, "offload_optimiser", "Did you mean 'zero_optimization.offload_optimizer'?"),
        ({"zero_optimization": {"verbose": True}}, "verbose", "Remove it; comments are allowed"),
        (
            {"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}},
            "max_grad_norm",
            "Did you mean 'gradient_clipping' at the top of the file?",
        ),
        ({"checkpointing": {"tag_validaton": "Fail"}}, "checkpointing", "Did you mean 'checkpoint'?"),
    ],
)
def test_unknown_keys_are_named_with_what_was_meant(data: dict[str, Any], key: str, hint: str) -> None:
    finding = only(data)
    assert finding.path[-1] == key
    assert (finding.hint or "").startswith(hint)
    assert finding.severity == "error"
    assert finding.rule == ("misplaced-key" if "zero_optimization." in hint else "unknown-key")


@pytest.mark.parametrize(
    ("data", "key", "hint", "to"),
    [
        ({"stage": 3}, "stage", "It belongs in 'zero_optimization'", "zero_optimization.stage"),
        (
            {"offload_optimizer": {"device": "cpu"}},
            "offload_optimizer",
            "It belongs in 'zero_optimization'",
            "zero_optimization.offload_optimizer",
        ),
        (
            {"zero_optimization": {"gradient_clipping": 1}},
            "gradient_clipping",
            "It belongs at the top of the file",
            "gradient_clipping",
        ),
        ({"zero_optimization": {"aio": {}}}, "aio", "It belongs at the top of the file", "aio"),
        (
            {"optimizer": {"type": "AdamW", "lr": 3e-4}},
            "lr",
            "It belongs in 'optimizer.params'",
            "optimizer.params.lr",
        ),
        (
            {"optimizer": {"type": "AdamW"}, "lr": 3e-4},
            "lr",
            "It belongs in 'optimizer.params'",
            None,  # 'optimizer' has no 'params' yet, and the key is not next to it
        ),
        ({"lr": 1e-3}, "lr", "It belongs in 'optimizer.params'", None),  # an optimizer needs a type
        ({"zero_optimization": {"device": "cpu"}}, "device", "It belongs in 'zero_optimization.off", None),
    ],
)
def test_misplaced_keys_are_moved_to_their_one_place(
    data: dict[str, Any], key: str, hint: str, to: str | None
) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("misplaced-key", "error")
    assert finding.path[-1] == key
    assert finding.hint is not None
    assert finding.hint.startswith(hint)
    verb = "refuses" if finding.path[0] == "zero_optimization" else "does not read"
    assert finding.message.startswith(f"DeepSpeed {verb} '{key}'")
    moves = [dotted(edit.to) for edit in finding.fix if isinstance(edit, Move)]
    assert moves == ([to] if to else [])


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({"optimizer": {"type": "Adam", "adam_w_mode": True, "params": {}}}, "warning"),
        ({"optimizer": {"type": "Adam", "adam_w_mode": False, "params": {}}}, "error"),
        ({"optimizer": {"type": "Adam", "eps": 1e-8, "params": {"eps": 1e-6}}}, "error"),
        ({"stage": 0}, "warning"),
        ({"stage": 1}, "error"),
        ({"zero_optimization": {"gradient_clipping": 1.0}}, "error"),  # refused
    ],
)
def test_a_misplaced_key_that_says_what_deepspeed_does_anyway_is_no_error(data: dict[str, Any], severity: str) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("misplaced-key", severity)


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        ({"gradient_cliping": 1.0}, Move(("gradient_cliping",), ("gradient_clipping",))),
        ({"gradient_cliping": "a lot"}, None),  # the value would be wrong there
        ({"gradient_cliping": 1.0, "gradient_clipping": 2.0}, None),  # taken
        ({"gradient_acc": 8}, None),  # not near enough
        (
            {"optimizer": {"type": "Adam", "params": {"beta": [0.9, 0.95]}}},
            Move(("optimizer", "params", "beta"), ("optimizer", "params", "betas")),
        ),
        ({"optimizer": {"type": "Adam", "params": {"beta": 0.9}}}, None),
        ({"bf17": {"enabled": True}}, None),  # a short name, near to several
        ({"zero_optimisation": {"stag": 3}}, Move(("zero_optimisation",), ("zero_optimization",))),
        (
            {"per_device_train_batch_size": 4},
            Move(("per_device_train_batch_size",), ("train_micro_batch_size_per_gpu",)),
        ),
        ({"bf16": {"loss_scale": 0}}, Remove(("bf16", "loss_scale"))),
        ({"bf16": {}, "bfloat16": {}}, Remove(("bfloat16",))),
        ({"bf16": {"enabled": True}, "bfloat16": {}}, None),
        ({"amp": {"enabled": False}}, Remove(("amp",))),
        ({"amp": {"enabled": True}}, None),
        ({"fp32_allreduce": False}, Remove(("fp32_allreduce",))),
    ],
)
def test_keys_are_fixed_where_there_is_one_right_answer(data: dict[str, Any], fix: Edit | None) -> None:
    findings = check_ds_config(Document(data, "ds.json"))
    assert [edit for finding in findings[:1] for edit in finding.fix] == ([fix] if fix else [])


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ({"pipeline": {"activation_checkpointing": False}}, "Remove it: 'activation_checkpointing'"),
        ({"stage": "three"}, "Remove it: 'zero_optimization.stage' takes another value"),
        ({"stage": 3, "zero_optimization": {"stage": 2}}, "Remove it: 'zero_optimization.stage' is there"),
        ({"gradient_cliping": "a lot"}, "Did you mean 'gradient_clipping'? It takes another value"),
        ({"max_grad_norm": 1.0, "gradient_clipping": 2.0}, "Remove it: 'gradient_clipping' is there as well"),
    ],
)
def test_no_key_is_sent_where_its_value_is_wrong_or_another_stands(data: dict[str, Any], hint: str) -> None:
    assert (check_ds_config(Document(data, "ds.json"))[0].hint or "").startswith(hint)


@pytest.mark.parametrize("name", ["model-parallel-size", "stage3_min_live_parameters", "use_optimizer_broadcast"])
def test_a_name_with_a_word_for_something_else_is_not_a_misspelling(name: str) -> None:
    finding = only({"zero_optimization": {name: 1}} if "stage3" in name else {name: 1})
    assert (finding.hint or "").startswith("Remove it")


def test_a_file_of_something_else_is_not_looked_at_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[KeyPath] = []

    def meaning_of(path: KeyPath, data: Any) -> Meaning:
        looked.append(path)
        return Meaning("unknown", "Remove it", plain=False)

    monkeypatch.setattr("zerokit.config.mistakes.meaning_of", meaning_of)
    data = {"stage": 2, **{f"key_{number}": number for number in range(5000)}}
    valid = load_valid_part(Document(data, "ds.json"))
    assert len(looked) == MOST_LISTED
    assert valid.findings[-1].message == "4,901 more keys at the top of the file that DeepSpeed does not read"
    assert (len(valid.findings), valid.written, valid.doubtful) == (MOST_LISTED + 1, {}, {()})


def test_a_long_list_of_wrong_values_is_one_finding_after_the_first_of_them() -> None:
    betas = ["x"] * 5000
    data = {"optimizer": {"type": "Adam", "params": {"betas": betas}}}
    findings = check_ds_config(Document(data, "ds.json"))
    assert len(findings) <= MOST_LISTED + 1


def test_the_oldest_name_of_the_communication_format_is_rewritten() -> None:
    finding = only({"fp32_allreduce": True})
    assert edited({"fp32_allreduce": True}, finding.fix) == {"communication_data_type": "fp32"}
    (finding,) = check_ds_config(Document({"fp32_allreduce": True, "communication_data_type": "fp16"}, "ds"))
    assert finding.fix == ()


def test_second_names_are_worth_a_note() -> None:
    data = {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5e7}}
    finding = only(data)
    assert (finding.rule, finding.severity) == ("deprecated-key", "info")
    assert finding.fix == (
        Move(("zero_optimization", "prefetch_bucket_size"), ("zero_optimization", "stage3_prefetch_bucket_size")),
    )
    assert load_ds_config(data).zero_optimization.stage3_prefetch_bucket_size == 50_000_000


@pytest.mark.parametrize(
    "data",
    [
        {"cuda_visible_devices": 0},
        {"inference_batch_size": 1},
        {"flops_profiler": {"warm_up": 10}},
        # 'end_profile_step' is also a key of 'autotuning', but has another meaning there.
        {"flops_profiler": {"profile_step": 5, "end_profile_step": 10}},
        {"logging": {"enabled": True}},
        {"gradient_checkpointing": True},
        {"enable_cuda_graph": False},
        {"train_batch_size": 1, "replace_with_kernel_inject": True},
        {"monitor_config": {"enabled": True, "csv_monitor": {"enabled": False}}},
        {"checkpoint": {"parallel_write": {"enabled": False}}},
        {"optimizer": {"type": "Muon", "params": {"nonsense": 1}}},
    ],
)
def test_keys_that_mean_nothing_to_deepspeed_are_warnings_where_it_passes_over_them(data: dict[str, Any]) -> None:
    finding = only(data)
    assert (finding.rule, finding.severity) == ("unknown-key", "warning")
    assert load_ds_config(data).dump() != data  # and are left out


def test_keys_that_mean_nothing_are_errors_where_deepspeed_refuses_them() -> None:
    for section in ("zero_optimization", "fp16", "wandb", "compile"):
        assert only({section: {"cuda_visible_devices": 0}}).severity == "error"


@pytest.mark.parametrize("path", REMOVED_KEYS)
def test_keys_that_deepspeed_refuses_are_refused_whatever_their_value(path: tuple[str, ...]) -> None:
    data: Any = False
    for key in reversed(path):
        data = {key: data}
    finding = only(data)
    assert (finding.path, finding.rule) == (path, "removed-key")
    assert "refused by DeepSpeed" in finding.message
    assert finding.hint
    assert finding.fix == (Remove(path),)


@pytest.mark.parametrize(
    ("left", "right", "slips"),
    [
        ("", "", 0),
        ("stage", "stage", 0),
        ("stag", "stage", 1),
        ("satge", "stage", 1),
        ("stige", "stage", 1),
        ("", "ab", 2),
        ("ca", "abc", 3),
    ],
)
def test_slips_of_the_pen_are_counted(left: str, right: str, slips: int) -> None:
    assert distance(left, right) == distance(right, left) == slips


def test_a_section_with_other_keys_is_no_section_misspelled() -> None:
    finding = only({"checkpointing": {"enabled": True, "save_n_recent_checkpoints": 5}})
    assert finding.severity == "warning"
    assert (finding.hint or "").startswith("Remove it")


def test_an_argument_of_inference_is_not_sent_into_a_section_for_training() -> None:
    finding = only({"train_batch_size": 1, "enable_cuda_graph": True})
    assert finding.hint == "Remove it: it is an argument of deepspeed.init_inference, not of training"
    assert finding.fix == ()
    beside = only({"hybrid_engine": {"enabled": True}, "enable_cuda_graph": True})
    assert (beside.rule, beside.hint) == ("misplaced-key", "It belongs in 'hybrid_engine'")
