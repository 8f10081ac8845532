"""The model states that a run announces are those of the estimate, for its own optimizer and offload."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from tests.memory.runs import LLAMA, shape
from zerokit.distributed.group import RankGroup
from zerokit.distributed.parallel_groups import GroupPlace
from zerokit.distributed.ranks import Ranks
from zerokit.errors import ZerokitError
from zerokit.estimation import estimate
from zerokit.hardware.host_memory import host_memory_bytes
from zerokit.memory import Ia3, Lora, TrainingRun
from zerokit.memory import estimate as estimate_run
from zerokit.recipe import load_recipe
from zerokit.recipe.model import TaskSection
from zerokit.recipe.training_keys import OwnKeys
from zerokit.resolving.contradictions import resolve_for_trainer
from zerokit.training import preflight
from zerokit.training.announce import announce, expected_states, padding_line, states_line
from zerokit.training.packing import Padding
from zerokit.training.preflight import expected_peak
from zerokit.training.tasks.causal_lm import CausalLM
from zerokit.units import GIB
from zerokit.writing.build import build_ds_config

ADAFACTOR = {"type": "Adafactor", "params": {"lr": 1e-3}}
SGD = {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}}
PLAIN = {"fp16": False, "use_liger_kernel": False, "torch_compile": False, "label_smoothing_factor": 0.0}
"""TrainingArguments by their defaults."""


def ds_config(stage: int, **more: Any) -> dict[str, Any]:
    """What `zerokit config` writes, with "auto" in it, and an optimizer if one is given."""
    optimizer = more.pop("optimizer", None)
    path = "/nvme" if "nvme" in more.values() else None
    data = build_ds_config(zero_stage=stage, precision=None, nvme_path=path, **more).dump()
    return data if optimizer is None else {**data, "optimizer": optimizer, "zero_allow_untested_optimizer": True}


RUNS = [
    *((ds_config(stage), precision, None) for stage in range(4) for precision in ("fp32", "fp16", "bf16")),
    *((ds_config(stage, offload_optimizer="cpu"), "bf16", None) for stage in (1, 2, 3)),
    (ds_config(3, offload_optimizer="cpu", offload_param="cpu"), "bf16", None),
    (ds_config(3, offload_optimizer="nvme", offload_param="nvme"), "fp16", None),
    (ds_config(2, optimizer=ADAFACTOR), "bf16", None),
    (ds_config(0, optimizer=SGD), "fp32", None),
    (ds_config(3), "bf16", Lora(8)),
]


def _args(optim: str) -> Any:
    return SimpleNamespace(optim=optim)


@pytest.mark.parametrize(("config", "precision", "lora"), RUNS)
def test_model_states_are_the_estimates(config: dict[str, Any], precision: Any, lora: Lora | None) -> None:
    told = estimate(shape(), num_gpus=4, ds_config=config, precision=precision, micro_batch_size=1, lora=lora)
    resolved = resolve_for_trainer(config, {}, default_precision=precision, world_size=4)
    counts = told.num_parameters, told.num_trainable_parameters
    assert expected_states(resolved.ds_config, _args("adamw_torch_fused"), 4, *counts) == told.model_states


def _expected(optim: str, **more: Any) -> Any:
    resolved = resolve_for_trainer(ds_config(2, **more), {}, default_precision="bf16", world_size=4)
    return expected_states(resolved.ds_config, _args(optim), 4, 1_000_000, 1_000_000)


@pytest.mark.parametrize(
    ("optim", "unit"), [("adamw_torch", 12), ("adafactor", 8), ("adagrad", 8), ("sgd", 4), ("adamw_bnb_8bit", 6)]
)
def test_the_optimizer_of_the_run_is_counted(optim: str, unit: int) -> None:
    states = _expected(optim)
    assert states.optimizer_states_bytes == unit * 250_000
    assert states.total_bytes == (2 * 4 + 2 + unit) * 250_000


def test_an_optimizer_that_is_not_known_is_named() -> None:
    with pytest.raises(ZerokitError, match="'rmsprop' is not known"):
        _expected("rmsprop")


def test_the_line_says_where_each_state_lies() -> None:
    line = states_line(_expected("adamw_torch", offload_optimizer="cpu"), cuda=True)
    assert "parameters 1.91 MiB on the GPU, gradients 488.28 KiB on the host" in line
    assert "optimizer states 2.86 MiB on the host" in line
    assert "on the CPU" in states_line(_expected("adamw_torch"), cuda=False)


@pytest.fixture(autouse=True)
def _large_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "host_memory_bytes", lambda: 1024 * GIB)


def _peak_lines(
    gpu_bytes: int,
    *,
    held_out: Any = None,
    config: Any = None,
    adapter: Any = None,
    num_trainable: int = 0,
    seq_len: int = 512,
    mixed: str | None = None,
    **args: Any,
) -> list[str]:
    config = ds_config(2) if config is None else config
    resolved = resolve_for_trainer(config, {}, default_precision="bf16", world_size=2)
    given = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "optim": "adamw_torch"}
    prepared = SimpleNamespace(
        group=RankGroup(Ranks(world_size=2)),
        group_place=GroupPlace(world_size=2),
        own=OwnKeys(),
        args=SimpleNamespace(gradient_accumulation_steps=1, **{**PLAIN, **given, **args}),
        resolved=resolved,
        precision="bf16",
        held_out=held_out,
        train=Dataset.from_dict({"input_ids": [[1]]}),
        stream=None,
        loaded=SimpleNamespace(recipe=SimpleNamespace(task=SimpleNamespace(seq_len=seq_len))),
        task=CausalLM(TaskSection(chunked_loss=False), mixed=mixed),
    )
    adapters = None if adapter is None else {"default": adapter}
    model = SimpleNamespace(config=SimpleNamespace(to_dict=lambda: LLAMA), peft_config=adapters)
    told: Any = (prepared, model)
    lines, peak = expected_peak(*told, num_trainable, Ranks(0, 2, 0, 2), gpu_bytes)
    assert (peak is None) is ("is not estimated" in lines[0])
    return lines


def test_the_peak_is_said_with_what_to_lower() -> None:
    alone = _peak_lines(24 * GIB, per_device_eval_batch_size=64)
    assert len(alone) == 1
    assert "in optimizer step: Fits" in alone[0] or "in backward: Fits" in alone[0]
    evaluated = _peak_lines(4 * GIB, per_device_eval_batch_size=64, held_out=[1])
    assert "in evaluation: Does not fit: needs " in evaluated[0]
    assert "of each host's" in evaluated[0]
    assert "Lower training.per_device_eval_batch_size" in evaluated[1]
    assert "training.per_device_train_batch_size" in _peak_lines(4 * GIB, per_device_train_batch_size=64)[1]
    (line,) = _peak_lines(GIB, per_device_eval_batch_size="four", held_out=[1])  # which no argument can be
    assert line.startswith("peak memory is not estimated: TypeError")
    assert _peak_lines(GIB, optim="rmsprop") == [
        "peak memory is not estimated: the memory of the optimizer 'rmsprop' is not known"
    ]


def test_rows_of_several_examples_are_counted_with_the_mask_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TrainingRun] = []

    def least(run: Any) -> Any:
        asked.append(run)
        return estimate_run(run)

    monkeypatch.setattr(preflight, "estimate_run", least)
    told = _peak_lines(800 * GIB, per_device_train_batch_size=8, seq_len=8192)
    assert [(run.micro_batch_size, run.packing) for run in asked] == [(8, False), (7, True)]
    _peak_lines(800 * GIB, per_device_train_batch_size=8, seq_len=8192, mixed="by a state")
    alone = _peak_lines(800 * GIB, per_device_train_batch_size=1, seq_len=8192)
    assert [(run.micro_batch_size, run.packing) for run in asked[2:]] == [(8, False), (1, False)]
    peaks = [estimate_run(run).device.peak_bytes for run in asked]
    assert peaks[1] > peaks[0] == peaks[2] > peaks[3]
    assert told != alone


def test_the_advice_is_of_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, warning = _peak_lines(GIB)
    assert "out of GPU memory. Even batches of one do not fit" in warning
    monkeypatch.setattr(preflight, "host_memory_bytes", lambda: GIB)
    _, warning = _peak_lines(24 * GIB, config=ds_config(2, offload_optimizer="cpu"))
    assert "out of host memory. Offload less" in warning
    assert "batch" not in warning


def test_an_adapter_of_more_than_the_estimate_knows_is_not_estimated() -> None:
    keys = {"r": 8, "target_modules": {"q_proj", "v_proj"}, "use_dora": False, "lora_dropout": 0.0}
    adapter = SimpleNamespace(**keys, peft_type="LORA", is_prompt_learning=False)
    known = estimate(shape(), num_gpus=2, zero_stage=2, lora=Lora(8)).num_trainable_parameters
    (line,) = _peak_lines(24 * GIB, adapter=adapter, num_trainable=known)
    assert line.startswith("estimated peak")
    # As with modules_to_save or rank_pattern.
    assert _peak_lines(24 * GIB, adapter=adapter, num_trainable=known + 7) == [
        f"peak memory is not estimated: the adapter trains {known + 7} parameters, and the estimate knows of {known}"
    ]
    adapter.peft_type = "VERA"
    assert _peak_lines(24 * GIB, adapter=adapter, num_trainable=7) == [
        "peak memory is not estimated: it knows no adapter of VERA"
    ]


def test_dora_dropout_and_ia3_are_estimated() -> None:
    names = ("down_proj", "q_proj", "v_proj")
    pattern = r".*\.(v|down)_proj"
    dora = {"r": 8, "target_modules": set(names), "peft_type": "LORA", "use_dora": True}
    ia3 = {"target_modules": pattern, "feedforward_modules": r".*down_proj", "peft_type": "IA3"}
    for keys, known in (
        ({**dora, "lora_dropout": 0.0}, {"lora": Lora(8, names, dora=True)}),
        ({**dora, "lora_dropout": 0.1}, {"lora": Lora(8, names, dora=True, dropout=True)}),
        (ia3, {"ia3": Ia3(pattern, r".*down_proj")}),
    ):
        adapter = SimpleNamespace(**keys, is_prompt_learning=False)
        assert preflight._adapter(SimpleNamespace(peft_config={"default": adapter}, config=None)) == known
        trained = estimate(shape(), num_gpus=2, zero_stage=2, **known).num_trainable_parameters
        (line,) = _peak_lines(24 * GIB, adapter=adapter, num_trainable=trained)
        assert line.startswith("estimated peak")


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/", {"memory.max": "300"}, 300),
        ("0::/slurm/job_1/step_0", {"slurm/job_1/memory.max": "200", "slurm/step_0/memory.max": "1"}, 200),
        ("0::/a/b", {"memory.max": "300", "a/memory.max": "100", "a/b/memory.max": "max"}, 100),
        ("4:cpu,memory:/job\n0::/", {"memory/job/memory.limit_in_bytes": "50", "job/memory.max": "1"}, 50),
        ("4:memory:/docker/x", {"memory/memory.limit_in_bytes": "40"}, 40),  # seen from within
        ("3:cpuset:/a", {"a/memory.max": "1", "memory/a/memory.limit_in_bytes": "1"}, None),
        (None, {"memory.max": "300"}, 300),
        (None, {}, None),
    ],
)
def test_a_host_has_what_its_control_groups_leave(
    own: str | None, files: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {**written, **({} if own is None else {"proc/self/cgroup": own})}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_memory_bytes(tmp_path) == (expected or whole)


@pytest.mark.parametrize(
    ("mixed", "packed", "key"),
    [(None, False, "padding_free"), (None, True, "packing"), ("its layers look at all", False, "padding_free")],
)
def test_how_examples_lie_is_said_with_what_switches_it_off(mixed: str | None, packed: bool, key: str) -> None:
    words = CausalLM(TaskSection(), mixed=mixed).layout_words("2% padding", packed=packed)
    assert f"(task.{key}: false switches it off)" in words


@pytest.mark.parametrize(("columns", "word"), [({}, "examples"), ({"position_ids": [[0, 1, 0]]}, "documents")])
def test_a_step_has_documents_where_sequences_are_packed(columns: dict[str, Any], word: str) -> None:
    rows = Dataset.from_dict({"input_ids": [[1, 2, 3]], **columns})
    said = padding_line(Padding(0.02, 0.6, 32), CausalLM(TaskSection()), rows)
    assert str(said).endswith(f"; 32 {word} a step")
    assert padding_line(Padding(0.1951, 0.195, 32), CausalLM(TaskSection()), rows) is None  # alike as printed


def _prepared(optim: str, resume: Path | None, *words: str) -> Any:
    """A run of the embedded recipe on two ranks, with other values in `words`."""
    resolved = resolve_for_trainer(ds_config(1), {}, default_precision="fp32", world_size=2)
    return SimpleNamespace(
        group=RankGroup(Ranks(world_size=2)),
        group_place=GroupPlace(world_size=2),
        own=OwnKeys(),
        args=SimpleNamespace(optim=optim, **PLAIN),
        resolved=resolved,
        precision="fp32",
        zero_stage=1,
        train=Dataset.from_dict({"input_ids": [[1]]}),
        stream=None,
        held_out=None,
        task=CausalLM(TaskSection(chunked_loss=False)),
        padding=Padding(0.02, 0.6, 32),
        loaded=load_recipe(None, ["--training.output_dir", "out", *words]),
        output=SimpleNamespace(resume=resume),
        output_dir=Path("out"),
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--parallel.sequence", "2"), "sequence parallelism: 2 ranks share the tokens of a micro batch, "),
        (
            ("--parallel.tensor", "2"),
            "tensor parallelism: 2 ranks divide each layer, and compute the same micro batch",
        ),
        ((), None),
    ],
)
def test_a_run_says_what_its_groups_of_ranks_share(
    words: tuple[str, ...], line: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    model: Any = torch.nn.Linear(10, 10)
    announce(_prepared("adamw_torch_fused", None, *words), model, cuda=False)
    said = [one for one in capsys.readouterr().err.splitlines() if "parallelism" in one]
    assert len(said) == (line is not None)
    assert all(one.startswith(str(line)) for one in said)


@pytest.mark.parametrize(
    ("optim", "expected"), [("adamw_torch_fused", 4 * 110 + 4 * 110 + 12 * 55), ("rmsprop", None)]
)
def test_a_run_says_what_it_keeps(optim: str, expected: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    prepared = _prepared(optim, None if expected else Path("out/checkpoint-7"))
    model: Any = torch.nn.Linear(10, 10)
    told: Any = (prepared, model)
    assert announce(*told, cuda=False) == (expected, None)
    said = capsys.readouterr().err
    since = "" if expected else ", resumed from out/checkpoint-7"
    recipe = "a model from scratch by the embedded default recipe, as there is no --recipe"
    assert f"trains {recipe}{since}; saved in out\n" in said
    assert "110 parameters, 110 trained, fp32, ZeRO-1 on 2 ranks; 1 row, 0 held out" in said
    padding = "padding-free batches: 2.0% padding instead of 60.0%"
    assert f"{padding} (task.padding_free: false switches it off); 32 examples a step" in said
    assert ("optimizer states 660 B on the CPU" in said) is (expected is not None)
    assert ("'rmsprop' is not known" in said) is (expected is None)
