"""Train a small model, fine-tune it and generate from it, with zerokit's own commands."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from zerokit import console
from zerokit.distributed.extensions import check_compiler
from zerokit.distributed.group import count_gpus
from zerokit.errors import ZerokitError
from zerokit.recipe import PYTHON_QUESTIONS

CPU_RANKS = 2
QUESTIONS = (
    'Question: What does "lambda" mean?\nAnswer:',
    'Question: What does "__len__" do?\nAnswer:',
    'Question: What does "str.strip" do?\nAnswer:',
)
"""An odd number, so that two ranks get unequal shares."""


class StepFailedError(ZerokitError):
    """A command of the quickstart failed; it has printed why."""

    exit_code = 1


def quickstart(folder: Path, *, max_steps: int | None = None) -> None:
    """Run the commands of the quickstart on all GPUs, or on two CPU ranks if there is none.

    Raises:
        ZerokitError: this machine has no compiler, which CPU ranks need, or a command failed.
    """
    num_ranks = count_gpus()
    if not num_ranks:
        check_compiler()
    for command in commands(folder, num_ranks or CPU_RANKS, max_steps):
        console.note("")
        console.note(f"$ zerokit {shlex.join(command)}")
        code = subprocess.run([sys.executable, "-P", "-m", "zerokit", *command], check=False).returncode
        if code:
            raise StepFailedError(
                f"'zerokit {command[0]}' ended with exit code {code}",
                where="zerokit quickstart",
                hint="See its last line. Run the quickstart again after fixing that",
            )
    recipe = "mine.yaml"
    console.note("")
    console.note(f"Done. {folder / 'model'} loads with AutoModelForCausalLM.from_pretrained.")
    console.note("Next, train your own model:")
    console.note(f"  zerokit train --print-recipe > {recipe}")
    console.note(f"  zerokit train --num-gpus {num_ranks or 1} --recipe {recipe}")


def commands(folder: Path, num_ranks: int, max_steps: int | None = None) -> Iterator[list[str]]:
    """Yield the arguments of each command in order."""
    corpus, model, ds_config = (str(folder / name) for name in ("corpus", "model", "ds_config.json"))
    ranks = ["--num-gpus", str(num_ranks)]
    steps = ["--training.max_steps", str(max_steps)] if max_steps is not None else []
    # The global batch stays at 8, for which the learning rate was chosen.
    batch = ["--training.per_device_train_batch_size", str(max(1, 8 // num_ranks))]
    yield ["train", *ranks, *batch, *steps, "--training.output_dir", corpus, "--force"]
    yield ["config", "--zero-stage", "2", "--model", corpus, *ranks, "-o", ds_config, "--force"]
    yield ["check", ds_config, "--target", "trainer", *ranks]
    yield ["estimate", corpus, *ranks, "--ds-config", ds_config, "--seq-len", "256"]
    length = steps or ["--training.num_train_epochs", "3"]
    yield [
        *["train", *ranks, *batch, *length, "--model", corpus, "--deepspeed", ds_config],
        *["--data.train", PYTHON_QUESTIONS, "--task.packing", "false", "--task.seq_len", "256"],
        *["--training.learning_rate", "1e-3", "--training.gradient_accumulation_steps", "1"],
        *["--training.gradient_checkpointing", "false", "--training.output_dir", model, "--force"],
    ]
    prompts = [word for question in QUESTIONS for word in ("--prompt", question)]
    yield ["generate", *ranks, "--model", model, *prompts, "--max_new_tokens", "48"]
