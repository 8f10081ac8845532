"""``launch/generate.py`` on two ranks, forked or through torchrun. A hang ends in ``HangsError``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.launched.mistakes import both_ranks_say
from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

SCRIPT = REPOSITORY / "launch" / "generate.py"
PROMPTS = [
    "The for statement",
    "Hi",
    "What does the import statement do? It finds a module",
    "abc",
    "A class definition is",
]
MAX_NEW_TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_tokenizer(folder)
    tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def readable(model: Path) -> list[int]:
    """Tokens to suppress, so that text shows which tokens were made: those that are no whole character."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return [token for token in range(2, len(tokenizer)) if "\ufffd" in tokenizer.decode([token])]


@pytest.fixture(scope="module")
def ends(model: Path, readable: list[int]) -> list[int]:
    """End tokens that two of the prompts meet, each after another number of tokens."""
    free = reference(model, readable, [0])
    return [0, free[0]["tokens"][4], free[2]["tokens"][11]]


def reference(
    model: Path,
    suppress: Sequence[int],
    ends: Sequence[int],
    prompts: Sequence[str] = PROMPTS,
    adapter: Path | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Plain transformers, one process, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter is not None:
        from peft import PeftModel

        plain = PeftModel.from_pretrained(plain, adapter).eval()
    result = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        made = plain.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=MAX_NEW_TOKENS,
            do_sample=False,
            suppress_tokens=list(suppress),
            eos_token_id=list(ends),
            **options,
        )[:, ids.shape[1] :].tolist()
        for tokens in made:
            stop = next((at for at, token in enumerate(tokens) if token in ends), None)
            result.append(
                {
                    "tokens": tokens,
                    "completion": tokenizer.decode(tokens[:stop], skip_special_tokens=True),
                    "num_completion_tokens": len(tokens) if stop is None else stop + 1,
                    "finish_reason": "length" if stop is None else "stop",
                }
            )
    return result


def outcome(records: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    keys = ("completion", "num_completion_tokens", "finish_reason")
    return [tuple(record[key] for key in keys) for record in records]


def sampling(suppress: Sequence[int], ends: Sequence[int]) -> list[str]:
    return [
        *("--max_new_tokens", f"{MAX_NEW_TOKENS}", "--do_sample", "false"),
        *("--suppress_tokens", json.dumps(list(suppress)), "--eos_token_id", json.dumps(list(ends))),
    ]


def read_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_uneven_prompts_equal_plain_transformers(
    model: Path, readable: list[int], ends: list[int], tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    run = launch(
        [
            *(SCRIPT, "--model", model, "--prompts", "prompts.txt", "-o", "out.jsonl", "--batch-size", "2"),
            *("--mode", "sharded", *sampling(readable, ends)),
        ],
        ranks=2,
        launcher="none",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    expected = reference(model, readable, ends)
    assert {record["finish_reason"] for record in expected} == {"stop", "length"}
    records = read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert [record["prompt"] for record in records] == PROMPTS
    assert [record["index"] for record in records] == list(range(len(PROMPTS)))
    assert outcome(records) == outcome(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "prompts.txt"]
    assert run.stderr.count("zerokit: 5 prompts, ") == 1


def make_adapter(model: Path, folder: Path) -> Path:
    """A LoRA adapter of layers that tensor parallelism divides by columns and by rows."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    config = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    get_peft_model(plain, config).save_pretrained(folder / "adapter")
    return folder / "adapter"


@pytest.mark.parametrize("mode", ["tensor", "offloaded"])
def test_divided_and_offloaded_weights_equal_plain_transformers(
    mode: str, model: Path, readable: list[int], ends: list[int], tmp_path: Path
) -> None:
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    adapter = None
    if mode == "tensor":  # which DeepSpeed would leave with parts of the scores
        model = tmp_path / "tied"
        tiny_tokenizer(model)
        tiny_llama(model, tie_word_embeddings=True)
        adapter = make_adapter(model, tmp_path)
    words = [SCRIPT, "--model", adapter or model, "--prompts", "prompts.txt", "-o", "out.jsonl", "--mode", mode]
    run = launch([*words, *sampling(readable, ends)], ranks=2, launcher="none", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    records = read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert outcome(records) == outcome(reference(model, readable, ends, adapter=adapter))
    assert f"mode {mode}, " in run.stderr


def test_a_rank_without_prompts(model: Path, readable: list[int], ends: list[int], tmp_path: Path) -> None:
    """Beam search too, and results on stdout, which has nothing of ours but them."""
    (tmp_path / "training.json").write_text(
        json.dumps(
            {
                "train_micro_batch_size_per_gpu": "auto",
                "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
                "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
            }
        ),
        encoding="utf-8",
    )
    run = launch(
        [
            *(SCRIPT, "--model", model, "--prompt", PROMPTS[2], "--ds-config", "training.json"),
            *(*sampling(readable, ends), "--num_beams", "2", "--num_return_sequences", "2"),
        ],
        ranks=2,
        launcher="torchrun",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert "Warning" not in run.stderr
    (record,) = [json.loads(line) for line in run.stdout.splitlines()]
    expected = reference(model, readable, ends, [PROMPTS[2]], num_beams=2, num_return_sequences=2)
    assert outcome(record["completions"]) == outcome(expected)


def test_a_small_model_is_copied_to_every_rank(
    model: Path, readable: list[int], ends: list[int], tmp_path: Path
) -> None:
    chats = [{"messages": [{"role": "user", "content": prompt}]} for prompt in PROMPTS[:3]]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
    run = launch(
        [*(SCRIPT, "--model", model, "--prompts", "chats.jsonl"), *("--batch-size", "1", *sampling(readable, ends))],
        ranks=2,
        launcher="none",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("zerokit: mode replicated, 1 at once: ") == 1
    records = read_lines(run.stdout)
    expected = reference(model, readable, ends, [f"<|user|>{prompt}<|end|><|assistant|>" for prompt in PROMPTS[:3]])
    assert [record["messages"] for record in records] == [chat["messages"] for chat in chats]
    assert outcome(records) == outcome(expected)


def test_a_wrong_option_is_said_once(tmp_path: Path) -> None:
    words = [SCRIPT, "--model", "m", "--prompt", "a", "--batch-size", "0"]
    run = launch(words, ranks=2, launcher="none", cwd=tmp_path)
    assert run.returncode == 2
    (line,) = errors(run.stderr)
    assert line == "--batch-size: is 0. Give 1 or more"
    assert "Traceback" not in run.stdout + run.stderr


def test_help_is_printed_once(tmp_path: Path) -> None:
    run = launch([SCRIPT, "--help"], ranks=2, launcher="none", cwd=tmp_path)
    assert run.returncode == 0
    assert run.stdout.count("--max-prompt-tokens") == 1


GENERATE = """
import sys
from unittest import mock
from zerokit.cli.main import command_line
from zerokit.generation.main import generate

def options_of(words):
    with mock.patch("zerokit.distributed.group.leave"), mock.patch("zerokit.generation.main.main") as run:
        command_line()(["generate", *words], standalone_mode=False)
    return run.call_args.args[0]

def run(group, words):
    generate(group, options_of(words), sys.stdout)
"""


def test_all_ranks_raise_the_same(model: Path, tmp_path: Path) -> None:
    """Whatever only one rank looks at is told to all: here the output file, and prompts read first."""
    (tmp_path / "old.jsonl").touch()
    (tmp_path / "column.jsonl").write_text('{"promt": "a"}\n', encoding="utf-8")
    (tmp_path / "stage2.json").write_text('{"zero_optimization": {"stage": 2}}', encoding="utf-8")
    remove_weight(model, tmp_path / "torn", "model.norm.weight")
    weight = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"
    remove_weight(make_adapter(model, tmp_path / "whole"), tmp_path / "adapter", weight)
    good = ["--model", str(model), "--prompt", "a"]
    mistakes = {
        "old.jsonl: the file exists. Add --force to overwrite it": [*good, "-o", "old.jsonl"],
        "none/out.jsonl: cannot be written: its folder does not exist": [*good, "-o", "none/out.jsonl"],
        "--prompts: 'column.jsonl' has no column": ["--model", str(model), "--prompts", "column.jsonl"],
        "--model: no such model folder: './none'": ["--model", "./none", "--prompt", "a"],
        "stage2.json:1 (zero_optimization.stage): stage 2": [*good, "--ds-config", "stage2.json"],
        "--max_new_token: unknown option. Did you mean": [*good, "--max_new_token", "4"],
        "--temperature: transformers refuses it": [*good, "--do_sample", "--temperature", "0"],
        "prompt 0: more than 256 tokens and 64 new ones": ["--model", str(model), "--prompt", "xy" * 300],
        # Found after loading, which every rank has then been through.
        "--model: 'torn' lacks 1 of the model's weights": ["--model", "torn", "--prompt", "a"],
        f"adapter: lacks '{weight}', which '{model}' needs": [
            *("--model", "adapter", "--prompt", "a", "--mode", "sharded")
        ],
    }
    both_ranks_say(mistakes, GENERATE, tmp_path)


STOP = """
import gc
from contextlib import nullcontext
from zerokit.generation.output import Path, Results
from zerokit.generation.queues import SharedQueue

def run(group, words):
    if "alone.jsonl" in words:
        broken = mock.patch.object(SharedQueue, "take", side_effect=ZerokitError("of rank 1"))
        with nullcontext() if group.ranks.is_main else broken:
            generate(group, options_of(words), sys.stdout)
    if "--resume" not in words:
        with mock.patch.object(Results, "finish", side_effect=ZerokitError("stopped")):
            generate(group, options_of(words), sys.stdout)
    gc.collect()  # of a process that ended, the lock is gone
    partial = Path("out.jsonl.partial")
    content = partial.read_bytes()
    group.together(lambda: None)
    if group.ranks.is_main:
        partial.write_bytes(content[: 2 * len(content) // 3])
    raise ZerokitError(f"{generate(group, options_of(words), sys.stdout)} failed")
"""


def test_a_run_that_was_stopped_continues_in_another_mode(
    model: Path, readable: list[int], ends: list[int], tmp_path: Path
) -> None:
    """With an adapter, and a prompt that cannot be used. Then an error of one rank ends both."""
    make_adapter(model, tmp_path)
    rows: list[dict[str, str | None]] = [{"q": prompt} for prompt in PROMPTS]
    rows.insert(2, {"q": None})
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    words = ["--model", "adapter", "--prompts", "rows.jsonl", "--template", "{q}", "--batch-size", "1"]
    words += ["-o", "out.jsonl", *sampling(readable, ends)]
    alone = [word.replace("out.jsonl", "alone.jsonl") for word in words]
    mistakes = {"stopped": words, "1 failed": [*words, "--resume", "--mode", "sharded"], "of rank 1": alone}
    both_ranks_say(mistakes, GENERATE + STOP, tmp_path)
    records = read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    failed = records.pop(2)
    assert failed == {"index": 2, "prompt": {"q": None}, "finish_reason": "error", "error": failed["error"]}
    assert [record["prompt"] for record in records] == PROMPTS
    assert outcome(records) == outcome(reference(model, readable, ends, adapter=tmp_path / "adapter"))
    assert not (tmp_path / "out.jsonl.partial").exists()


NVME = """
from dataclasses import replace
from pathlib import Path
from tests.launched.cpu_ops import stand_in_for_async_io
from zerokit.distributed import nvme
from zerokit.generation import mode

def run(group, words):
    stand_in_for_async_io()
    free, clear, files = mode.free_memory, nvme.clear_weights, []

    def clear_weights(zero, rank):
        files.extend(Path("zerokit-weights").rglob(f"rank{rank}/*"))
        clear(zero, rank)

    with (
        mock.patch.object(mode, "free_memory", lambda ranks: replace(free(ranks), host_bytes=2**20)),
        mock.patch.object(nvme, "clear_weights", clear_weights),
    ):
        failed = generate(group, options_of(words), sys.stdout)
    left = [*Path("zerokit-weights").rglob("*.swp")]
    raise ZerokitError(f"{failed} failed, {len(files)} files, {len(left)} left")
"""


def test_weights_on_nvme_equal_plain_transformers(tmp_path: Path) -> None:
    """The host is said to have 1 MiB. In each of two layers five weights are large enough for a file."""
    tiny_tokenizer(tmp_path)
    tiny_llama(tmp_path, hidden_size=768, intermediate_size=1024, initializer_range=0.05)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS), encoding="utf-8")
    words = ["--model", str(tmp_path), "--prompts", "prompts.txt", "-o", "out.jsonl", "--mode", "offloaded"]
    both_ranks_say({"0 failed, 10 files, 0 left": [*words, *sampling([], [0])]}, GENERATE + NVME, tmp_path)
    records = read_lines((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    assert outcome(records) == outcome(reference(tmp_path, [], [0]))


def remove_weight(model: Path, copy: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(model, copy)
    (file,) = copy.glob("*.safetensors")
    weights = load_file(file)
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})


def errors(stderr: str) -> list[str]:
    mark = "zerokit: error: "
    return [line.removeprefix(mark) for line in stderr.splitlines() if line.startswith(mark)]
