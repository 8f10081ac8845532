"""Names, keys and lines of somebody else's files: no command prints what a terminal acts on."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.examples import examples
from tests.validation.faults.checkpoints import Tensor, archive
from zerokit.cli.main import main

LINE = "zerokit: error: a line of somebody else's"
SEQUENCES = (
    *("\x1b[31m", "\x1b]0;owned\x07", "\x9b2J", "\r", "\t", "\b", "\x7f", "\x00", "\x85", "\u2028", "\u2029"),
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\xad", "\U000e0041", f"\n{LINE}\n"),
)
HOSTILE = st.lists(st.sampled_from([*SEQUENCES, "a", "/", " ", "é"]), min_size=1, max_size=6).map("".join)


def run(folder: Path, *words: object) -> str:
    """What a command prints, in this process."""
    printed, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with (
            mock.patch.object(sys, "argv", ["zerokit", *map(str, words)]),
            redirect_stdout(printed),
            redirect_stderr(printed),
            pytest.raises(SystemExit) as end,
        ):
            main()
    finally:
        os.chdir(before)
    assert end.value.code in (0, 1, 2)
    return printed.getvalue()


def check(printed: str) -> None:
    printed = printed.replace("\r\n", "\n")  # line ends of a file stay in its diff
    acted_on = {char for char in printed if not char.isprintable() and char != "\n"}
    assert not acted_on, printed
    assert not [line for line in printed.splitlines() if line.startswith(LINE)], printed


def as_name(text: str) -> str:
    """A name of a file that every file system takes."""
    return text.replace("/", "_").replace("\0", "_").encode()[:80].decode(errors="ignore").strip(".") or "a"


def try_all(folder: Path, on_terminal: bool, commands: Iterable[Sequence[object]]) -> None:
    with (
        mock.patch("zerokit.distributed.group.leave", sys.exit),  # and not the process of the tests
        mock.patch("zerokit.reporting.terminal._on_terminal", return_value=on_terminal),
        mock.patch.dict(os.environ, {"NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder)}),
    ):
        for words in commands:
            check(run(folder, *words))


def safetensors(name: str, value: float) -> bytes:
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + struct.pack("<f", value)


@given(st.booleans(), HOSTILE, HOSTILE)
@examples(10, deadline=None)
def test_of_checkpoints(on_terminal: bool, name: str, other: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        run_folder = as_name(f"run{name}")
        for number, filled_with in ((5, 0xFF), (6, 0)):
            step = folder / run_folder / f"global_step{number}"
            step.mkdir(parents=True)
            model = {
                "module": {f"w{name}": Tensor((2,)), "x": Tensor((1,))},
                "buffer_names": [f"w{name}"],
                "shared_params": {f"tied{other}": f"w{name}"},
                "dp_world_size": 1,
                "global_steps": number,
                "ds_version": f"0.19.8{name}",
            }
            file = step / "mp_rank_00_model_states.pt"
            file.write_bytes(archive(file.name, model, filled_with=filled_with))
            (step / as_name(f"b{other}.bin")).touch()
        (folder / run_folder / "latest").write_text(f"global_step6{other}")
        (folder / run_folder / "trainer_state.json").write_text(json.dumps({"best_model_checkpoint": name}))
        for model_name, value in ((f"m{other}", 1.0), ("n", 2.0)):
            (folder / as_name(model_name)).mkdir()
            (folder / as_name(model_name) / "model.safetensors").write_bytes(safetensors(f"w{name}", value))
        adapter = folder / "adapter"
        adapter.mkdir()
        config = {"peft_type": f"LORA{name}", "base_model_name_or_path": name, "r": 1}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        (adapter / "adapter_model.safetensors").write_bytes(safetensors(name, 1.0))
        steps = [f"{run_folder}/global_step{number}" for number in (5, 6)]
        json_too = [("--format", form) for form in ("text", "json")]
        commands: list[Sequence[object]] = [
            *(("checkpoint", what, one, *form) for what in ("show", "verify") for one in steps for form in json_too),
            *(("checkpoint", "diff", *steps, *form) for form in json_too),
            ("checkpoint", "diff", as_name(f"m{other}"), "n"),
            ("checkpoint", "show", run_folder),
            ("checkpoint", "export", steps[0], "-o", "out", "--no-config"),
            ("checkpoint", "export", steps[0], "-o", as_name(name), "--base", as_name(other)),
            ("checkpoint", "reshard", steps[0], "-o", "out2", "--num-gpus", 2),
            ("checkpoint", "merge", "adapter", "-o", "out3"),
            ("checkpoint", "merge", "adapter", "-o", "out3", "--base", as_name(f"m{other}")),
            ("checkpoint", "prune", run_folder, "--keep", 1, "--dry-run"),
            ("checkpoint", "prune", run_folder, "--keep", 1),
        ]
        try_all(folder, on_terminal, commands)


@given(st.booleans(), HOSTILE, HOSTILE)
@example(True, "\r", "\x1b[31m")
@example(False, f"\n{LINE}\n", "\u202e")
@examples(8, deadline=None)
def test_of_configs_and_recipes(on_terminal: bool, name: str, other: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            f"gradient_clipping{name}": 1,
            "zero_optimization": {"stage": 2, "offload_param": {"device": other}, name: {other: name}},
            "optimizer": {"type": name, "params": {other: name, "lr": 1e-3}},
            "scheduler": {"type": other, "params": {}},
        }
        files = [as_name(f"a{name}.json"), "b.json", "c.jsonc"]
        (folder / files[0]).write_text(json.dumps(config, indent=1, ensure_ascii=False), newline="")
        (folder / "b.json").write_text(json.dumps(config | {"gradient_clipping": 2}), newline="")
        valid = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": name}},
            "tensorboard": {"enabled": True, "output_path": other, "job_name": name},
        }
        for number, file in enumerate(("valid.json", as_name(f"v{other}.json"))):
            (folder / file).write_text(json.dumps(valid | {"gradient_clipping": number}))
        commented = name.replace("\n", " ")
        (folder / "c.jsonc").write_text(
            f'{{ // {commented}\n"zero_optimization": {{"stage": "3", {commented}: {commented}}},}}', newline=""
        )
        recipe = {
            "model": f"./{name}",
            "data": {"train": f"{other}.jsonl", name: other},
            "task": {"seq_len": 64, "type": name},
            "training": {"output_dir": other, name: 1, "optim": name},
            "deepspeed": config,
            other: {},
        }
        (folder / as_name(f"r{name}.yaml")).write_text(yaml.safe_dump(recipe))
        (folder / "model").mkdir()
        shape = {"model_type": name, "architectures": [other], "hidden_size": 8, "vocab_size": name}
        (folder / "model" / "config.json").write_text(json.dumps(shape))
        (folder / "hosts").write_text(f"worker{name} slots={other}\n", newline="")
        (folder / "good.yaml").write_text("model: ./model\ndata: {train: a.jsonl}\n")
        recipe_file = as_name(f"r{name}.yaml")
        commands: list[Sequence[object]] = [
            *(("check", f"--format={form}", "--", *files) for form in ("text", "json", "github", "sarif")),
            ("check", "--fix", "--diff", "--", *files),
            ("check", "--recipe", recipe_file, "--", *files),
            *(("resolve", file, "--num-gpus", 2, "--all", "--format", form)
              for file in files for form in ("text", "json")),
            ("resolve", as_name(f"v{other}.json"), "--num-gpus", 2, "--all"),
            ("diff", as_name(f"v{other}.json"), "valid.json", "--num-gpus", 2),
            ("resolve", "--recipe", recipe_file, "--num-gpus", 2),
            *(("diff", *pair, "--num-gpus", 2) for pair in ((files[0], "b.json"), ("b.json", "c.jsonc"))),
            ("estimate", "model", "--num-gpus", 2, "--seq-len", 8, "--zero-stage", 2),
            ("estimate", "llama-3.1-8b", "--num-gpus", 2, "--seq-len", 8, "--ds-config", files[0]),
            ("estimate", name, "--num-gpus", 2, "--seq-len", 8),
            ("train", "--recipe", recipe_file),
            ("train", f"--{name}", other),
            ("launch-script", recipe_file, "--for", "slurm", "--num-nodes", 2),
            ("launch-script", "good.yaml", "--for", "torchrun", "--num-nodes", 1, "--hostfile", "hosts"),
            ("launch-script", "good.yaml", "--for", name),
            ("explain", name),
            ("config", "--zero-stage", other, "--optimizer", name),
            ("doctor", "--hostfile", "hosts"),
            (name, other),
        ]  # fmt: skip
        without_nul = [[str(word).replace("\0", "") for word in words] for words in commands]
        try_all(folder, on_terminal, without_nul)


LOG = [
    "Traceback (most recent call last):",
    '  File "/home/{name}/train.py", line 12, in {other}',
    "ValueError: {name}",
    "zerokit: error: {name}: no such key. {other}",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {name}",
    "[rank3]: RuntimeError: NCCL error {name} {other}",
    "[2026-11-22 10:00:00,1] [ERROR] [launch.py:325:sigkill_handler] ['{name}'] exits with return code = -9",
    "FileNotFoundError: [Errno 2] No such file or directory: '{name}'",
    "ModuleNotFoundError: No module named '{name}'",
    "safetensors_rust.SafetensorError: Error while deserializing header: {other}",
    "KeyError: '{name}'",
]


@given(st.booleans(), st.lists(st.sampled_from(LOG), min_size=1, max_size=4), HOSTILE, HOSTILE)
@examples(60, deadline=None)
def test_of_logs(on_terminal: bool, lines: list[str], name: str, other: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder, file = Path(made), as_name(f"{other}.log")
        text = "\n".join(line.format(name=name, other=other) for line in lines)
        (folder / file).write_text(text.replace(LINE, "a line"), newline="")
        try_all(folder, on_terminal, [("explain-exit", f"./{file}", "--format", form) for form in ("text", "json")])
