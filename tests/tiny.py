"""A tokenizer and a model small enough to make on the spot, and real launchers to run them with.

Nothing here touches the network, and nothing is kept between tests but the extensions that DeepSpeed
compiles once per machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import forked, processes
from zerokit.distributed.ranks import free_port

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

REPOSITORY = Path(__file__).resolve().parent.parent

ONE_STEP_RECIPE = """\
model: model
data:
  train: data.jsonl
task:
  seq_len: 64
training:
  output_dir: out
  max_steps: 1
"""
"""Of one step on `data.jsonl`, from the folder `model`; both lie beside it."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Renders ``<|user|>Hi<|end|><|assistant|>``: plain text to the tokenizer but for ``<|end|>``."""

_TEXT = [
    "The for statement is used to iterate over the elements of a sequence.",
    "A class definition is an executable statement; names are bound in a new namespace.",
    "What does the import statement do? It finds a module and binds a name.",
] * 4


def tiny_tokenizer(folder: Path, *, vocab_size: int = 320) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer and save it into `folder`.

    Its special tokens are ``<|end|>`` (id 0, eos) and ``<|pad|>`` (id 1); it has no bos. Any text
    survives encoding and decoding. `vocab_size` (at least 258) is an upper bound.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", pad_token="<|pad|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    return tokenizer


def tiny_llama(folder: Path, *, seed: int = 0, **config: Any) -> PreTrainedModel:
    """Make a random Llama and save it into `folder` as safetensors, float32.

    Two layers, 64 hidden, 115,008 parameters; `config` are ``LlamaConfig`` keys to set otherwise.
    The weights are spread wide, so that greedy decoding does not settle on one token.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
        **config,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**settings)).eval()
    model.save_pretrained(folder)
    return model


def launch(
    args: Sequence[str | Path],
    *,
    ranks: int,
    launcher: str = "deepspeed",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a script on `ranks` CPU ranks and return its exit code, stdout and stderr.

    Args:
        args: the script and its options.
        ranks: how many processes.
        launcher: ``deepspeed``, ``torchrun``, ``accelerate``, ``python`` (then `ranks` is 1), or ``none``:
            see :mod:`tests.forked`.
        cwd: the folder to run in; the repository's root by default.
        env: variables to set on top of this process's.

    Raises:
        tests.processes.HangsError: the run hung and was ended; the exception carries the output so far.
    """
    from zerokit.distributed.extensions import own_folder

    words = [str(arg) for arg in args]
    environment = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str(own_folder()),  # for plain DeepSpeed, too: compiled once
        "PATH": f"{_BIN}{os.pathsep}{os.environ.get('PATH', '')}",  # DeepSpeed looks for ninja there
        **(env or {}),
    }
    cwd = cwd or REPOSITORY
    if launcher == "none":
        return forked.run(words, ranks=ranks, port=free_port(), cwd=cwd, env=environment)
    return processes.run([*_launcher_words(launcher, ranks), *words], cwd=cwd, env=environment)


_BIN = Path(sys.executable).parent


def _launcher_words(launcher: str, ranks: int) -> list[str]:
    port = f"{free_port()}"
    words = {
        "deepspeed": ["deepspeed", "--num_gpus", f"{ranks}", "--master_port", port],
        "torchrun": ["torchrun", "--nproc-per-node", f"{ranks}", "--master-port", port],
        "accelerate": [  # which starts one process on CPUs
            *("accelerate", "launch", "--cpu", "--num_processes", f"{ranks}", "--num_machines", "1"),
            *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", port),
        ],
        "python": [sys.executable],
    }[launcher]
    return words if launcher == "python" else [str(_BIN / words[0]), *words[1:]]
