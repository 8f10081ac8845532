"""What commands of results/scripts.json name, made on the spot: models without weights, data, configs.

Nothing comes from the Hub. A script that names a model or a data set of the Hub finds a folder of that name.
"""

from __future__ import annotations

import csv
import json
import random
import shutil
from array import array
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.earlier_inputs import write_earlier
from tests.validation.rehearsal.import_hooks import write_hook
from tests.validation.rehearsal.later_inputs import write_later
from tests.validation.rehearsal.litgpt_inputs import write_checkpoint
from tests.validation.rehearsal.nanovlm_inputs import write_cached, write_nanovlm
from tests.validation.rehearsal.picotron_inputs import write_run
from tests.validation.rehearsal.pretraining_inputs import write_pretraining
from tests.validation.rehearsal.public_models import MODELS, write_models
from tests.validation.rehearsal.sequence_inputs import write_sequences
from tests.validation.rehearsal.sound_and_picture_inputs import write_sounds_and_pictures

LINES = 64


def write_inputs(folder: Path) -> None:
    """Make all that the commands name, in `folder`."""
    write_models(folder)
    _write_data(folder)
    _write_images(folder / "images")
    _write_configs(folder)
    write_run(folder, MODELS["picotron-llama"])
    write_checkpoint(folder)
    write_pretraining(folder)
    write_later(folder)
    write_earlier(folder)
    write_nanovlm(folder)
    write_sequences(folder)
    write_sounds_and_pictures(folder)
    write_cached(folder / "hub" / "models--Qwen--Qwen2.5-0.5B", folder / "qwen")
    words = folder / "robot-test" / "dummy-tokenizer-wordlevel"
    shutil.copytree(folder / "llama-7b", words, dirs_exist_ok=True)
    for metric in sorted((folder / "evaluate" / "metrics").glob("*")):
        if not (folder / metric.name).exists():
            (folder / metric.name).symlink_to(metric)


def _user(line: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"What is {line}?"}]


def _assistant(text: str, line: int) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text * (3 + line % 20)}]


def _turn(line: int) -> list[dict[str, str]]:
    return [
        {"from": "human", "value": f"What is {line}?", "user": "", "content": f"What is {line}?"},
        {"from": "gpt", "value": "It is a number. " * (3 + line % 20), "content": "It is a number. "},
    ]


_INSTRUCTION = {"instruction": "What is it?", "input": ""}
_DATA: dict[str, Any] = {
    "messages": lambda line: {"messages": _user(line) + _assistant("It is a number. ", line)},
    "prompts": lambda line: {"prompt": _user(line), "solution": str(line)},
    "preferences": lambda line: {
        "prompt": _user(line),
        "chosen": _assistant("It is a number. ", line),
        "rejected": _assistant("No. ", line),
    },
    "rewards": lambda line: {
        "chosen": _user(line) + _assistant("It is a number. ", line),
        "rejected": _user(line) + _assistant("No. ", line),
    },
    "labelled": lambda line: {
        "prompt": _user(line),
        "completion": _assistant("It is a number. ", line),
        "label": line % 2 == 0,
    },
    "texts": lambda line: {"text": f"The number {line} is a number. " * 200},
    "summaries": lambda line: {"document": f"The number {line} is long. " * 40, "summary": f"It is {line}."},
    "translations": lambda line: {"translation": {"en": f"It is {line}. " * 9, "ro": f"Este {line}. " * 9}},
    "questions": lambda line: {
        "id": str(line),
        "title": "Numbers",
        "question": "Which one?",
        "context": f"It is {line}, and not another. " * 9,
        "answers": {"text": [str(line)], "answer_start": [6]},
    },
    "words": lambda line: {"tokens": ["Ann", "is", str(line)] * 6, "ner_tags": ["B-PER", "O", "O"] * 6},
    "nyu-mll/glue": lambda line: {
        "sentence1": f"It is {line}.",
        "sentence2": "It is a number. " * (1 + line % 9),
        "label": line % 2,
        "idx": line,
    },
    "sentence-transformers/stsb": lambda line: {
        "sentence1": f"It is {line}.",
        "sentence2": "It is a number.",
        "score": 0.5,
    },
    "databricks/databricks-dolly-15k": lambda line: {
        "instruction": f"What is {line}?",
        "context": "",
        "response": "It is a number. " * 5,
        "category": "open_qa",
    },
    "tatsu-lab/alpaca": lambda line: {
        **_INSTRUCTION,
        "output": "It is a number. " * (3 + line % 20),
        "text": f"### Instruction: What is {line}? ### Response: It is a number.",
    },
    "pictures": lambda line: {
        "id": str(line),
        "image": f"train/cat/{line % (LINES // 2)}.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": "It is a number. " * (3 + line % 20)},
        ],
    },
    "conversations": lambda line: {"id": str(line), "conversations": _turn(line)},
    "Anthropic/hh-rlhf": lambda line: {
        name: f"\n\nHuman: What is {line}?\n\nAssistant: {answer}"
        for name, answer in (("chosen", "It is a number."), ("rejected", "No."))
    },
    "tokens": lambda line: {"input_ids": [*range(100, 612)] * 9},
    "wikitext": lambda line: {"text": f"The number {line} is a number. " * 40},
    **dict.fromkeys(
        ("allenai/c4", "c4"),
        lambda line: {"text": f"The number {line} is a number. " * 40, "timestamp": "", "url": ""},
    ),
    "turns": lambda line: {"conversation": [{"human": f"What is {line}?", "assistant": "It is a number."}]},
    "regular": lambda line: {
        "sent1": f"It is {line}.",
        "sent2": "It",
        **{f"ending{number}": f"is {number} of them." for number in range(4)},
        "label": line % 4,
    },
    "Tevatron/msmarco-passage-aug": lambda line: {
        "query_id": str(line),
        "query": f"What is {line}?",
        "positive_passages": [{"docid": "0", "title": "Numbers", "text": "It is a number. " * 9}],
        "negative_passages": [{"docid": str(one), "title": "", "text": "No. " * 9} for one in range(1, 31)],
    },
    "simplescaling/s1K_tokenized": lambda line: {
        "text": f"<|im_start|>user\nWhat is {line}?<|im_end|>\n<|im_start|>assistant\n"
        + "It is a number. " * (100 + 40 * line)
        + "<|im_end|>"
    },
    "togethercomputer/RedPajama-Data-1T-Sample": lambda line: {"text": "A number. " * 200_000, "meta": ""},
    "open-r1/Mixture-of-Thoughts": lambda line: {
        "messages": _user(line) + _assistant("It is a number. ", line),
        "num_tokens": 100,
        "source": "math",
    },
    "yahma/alpaca-cleaned": lambda line: {**_INSTRUCTION, "output": "It is a number. " * (3 + line % 20)},
    "knkarthick/samsum": lambda line: {
        "id": str(line),
        "dialogue": "A: What is it?\nB: A number. " * (9 + line % 9),
        "summary": "It is a number.",
    },
    "HuggingFaceH4/ultrachat_200k": lambda line: {
        "prompt": "What is it?",
        "prompt_id": str(line),
        "messages": _user(line) + _assistant("It is a number. ", line),
    },
    "HuggingFaceH4/ultrafeedback_binarized": lambda line: {
        "prompt": f"What is {line}?",
        "chosen": _user(line) + _assistant("It is a number. ", line),
        "rejected": _user(line) + _assistant("No. ", line),
    },
}
"""Data sets by their folders: what line number N holds."""


_SPLITS = {
    "HuggingFaceH4/ultrachat_200k": ("train_sft", "test_sft"),
    "HuggingFaceH4/ultrafeedback_binarized": ("train_prefs", "test_prefs"),
    "nyu-mll/glue": ("train", "validation"),
    "wikitext": ("train", "test"),
    "open-r1/Mixture-of-Thoughts": ("train", "test"),
    **dict.fromkeys(("allenai/c4", "c4", "knkarthick/samsum"), ("train", "validation")),
}
"""Names of splits, where they or that of the configuration are not the usual ones."""
_CONFIGURATIONS = {"nyu-mll/glue": "mrpc", "wikitext": "wikitext-2-v1"}
_CONFIGURATIONS |= {"open-r1/Mixture-of-Thoughts": "all"}
_CONFIGURATIONS |= dict.fromkeys(("allenai/c4", "c4"), "en")
_MANY = {"nyu-mll/glue", "databricks/databricks-dolly-15k", "allenai/c4", "Tevatron/msmarco-passage-aug"}
_MANY |= {"knkarthick/samsum", "yahma/alpaca-cleaned", "HuggingFaceH4/ultrafeedback_binarized"}
"""Data sets of which scripts leave much out, or make large batches."""
_FEW = {"togethercomputer/RedPajama-Data-1T-Sample": 2}
"""Data sets of long texts."""
_CHAT = "DeepSpeedExamples/applications/DeepSpeed-Chat"
"""Reads ``local/jsonfile`` from a folder of its own."""
_CIFAR = """
from torchvision.datasets.fakedata import FakeData

module.CIFAR10 = lambda root, train=True, transform=None, download=False: FakeData(
    1024, (3, 32, 32), 10, transform
)
"""
"""Gives torchvision's made-up images for CIFAR-10, which is downloaded and compared with its checksum."""
_ALST = "accelerate/examples/alst_ulysses_sequence_parallelism"
_PHRASES = "temp/data/FinancialPhraseBank-v1.0/financial_phrase_bank_"
_SPLIT_NAMES = """---
configs:
- config_name: {config}
  data_files:
  - {{split: {0}, path: {0}.jsonl}}
  - {{split: {1}, path: {1}.jsonl}}
---
"""


def _write_data(folder: Path) -> None:
    for name, row in _DATA.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        rows = [row(line) for line in range(_FEW.get(name, LINES * (20 if name in _MANY else 1)))]
        splits = _SPLITS.get(name, ("train", "test"))
        for split in splits:
            _write_lines(folder / name / f"{split}.jsonl", rows)
        if name in _SPLITS:
            words = _SPLIT_NAMES.format(*splits, config=_CONFIGURATIONS.get(name, "default"))
            (folder / name / "README.md").write_text(words, encoding="utf-8")
        (folder / f"{Path(name).name}.json").write_text(json.dumps(rows), encoding="utf-8")
    questions = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
    (folder / "squad.json").write_text(json.dumps({"data": questions}), encoding="utf-8")
    with (folder / "glue.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["sentence1", "sentence2", "label"])
        table.writerows([f"It is {line}.", "It is a number.", line % 2] for line in range(LINES))
    for split in ("train", "val"):
        phrases = [
            {"sentence": f"It rose by {line}.", "label": "positive", "text_label": "positive"} for line in range(LINES)
        ]
        _write_lines(folder / f"{_PHRASES}{split}.jsonl", phrases)
    for split in ("train", "eval"):
        answers = {"chosen": " It is a number.", "rejected": " No."}
        chats = [{"prompt": f" Human: What is {line}? Assistant:", **answers} for line in range(4 * LINES)]
        _write_lines(folder / _CHAT / "data" / f"{split}.json", chats)
    instances = [{"text": f"The number {line} is a number. " * 40} for line in range(LINES)]
    (folder / "lmflow").mkdir(exist_ok=True)
    (folder / "lmflow" / "train.json").write_text(
        json.dumps({"type": "text_only", "instances": instances}), encoding="utf-8"
    )
    made_up = random.Random(0)
    tokens = array("H", (made_up.randrange(50257) for _ in range(100_000))).tobytes()
    for name in ("train.bin", "val.bin"):  # as nanoGPT's data/openwebtext/prepare.py writes them
        file = folder / "nanoGPT" / "data" / "openwebtext" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tokens)
    (folder / "pythia" / "generation_config.json").write_text('{"bos_token_id": 0}', encoding="utf-8")
    for name in ("data/wikitext-2.txt", "data/input.txt", "corpus/1.txt", "corpus/2.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("O God, O God! It is a number .\n" * 5000, encoding="utf-8")
    for name in ("punkt", "punkt_tab"):  # looked for, and read in evaluations only
        (folder / "nltk_data" / "tokenizers" / name).mkdir(parents=True, exist_ok=True)


def _write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_images(folder: Path) -> None:
    from PIL import Image

    made_up = random.Random(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            for number in range(LINES // 2):
                file = folder / split / label / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.frombytes("RGB", (64, 64), made_up.randbytes(64 * 64 * 3)).save(file)


_CODERS = {"down": "Encoder", "up": "Decoder"}


def _write_configs(folder: Path) -> None:
    for stage, offloads in ((1, False), (2, False), (3, False), (3, True)):
        zero: dict[str, Any] = {"stage": stage}
        if offloads:
            zero |= {f"offload_{what}": {"device": "cpu"} for what in ("optimizer", "param")}
        config = {
            "bf16": {"enabled": True},
            "zero_optimization": zero,
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
        }
        file = folder / f"zero{stage}{'_offload' * offloads}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
    offload = {"device": "cpu", "pin_memory": True, "ratio": 0.9, "super_offload": True}
    superoffload = {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_optimizer": offload},
    }
    (folder / "zero3_super.json").write_text(json.dumps(superoffload), encoding="utf-8")
    # Firefly's train_args/sft/full/qwen-7b-sft-full.json, for a model and data that are here
    firefly = {
        "output_dir": "out",
        "model_name_or_path": "qwen",
        "deepspeed": "Firefly/train_args/ds_z3_config.json",
        "train_file": "turns/train.jsonl",
        "template_name": "qwen",
        "train_mode": "full",
        "task_type": "sft",
        "max_seq_length": 1024,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "warmup_steps": 100,
        "gradient_checkpointing": True,
        "fp16": True,
        "remove_unused_columns": False,
        "report_to": "none",
    }
    (folder / "firefly.json").write_text(json.dumps(firefly), encoding="utf-8")
    # LongLoRA's code is for flash-attn before 2.7, and its requirements name no release: one of its time
    (folder / "LongLoRA").mkdir(exist_ok=True)
    (folder / "LongLoRA" / "requirements-cluster.txt").write_text("flash-attn==2.3.6\n", encoding="utf-8")
    vae = folder / "stabilityai" / "sd-vae-ft-ema" / "config.json"
    vae.parent.mkdir(parents=True, exist_ok=True)
    sizes = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "sample_size": 256}
    blocks = {f"{way}_block_types": [f"{way.title()}{kind}Block2D"] * 4 for way, kind in _CODERS.items()}
    vae.write_text(json.dumps({"_class_name": "AutoencoderKL", **sizes, **blocks}), encoding="utf-8")
    split = json.loads((folder / "zero2.json").read_text(encoding="utf-8"))
    split["tensor_parallel"] = {"autotp_size": 4}
    (folder / "zero2_tp4.json").write_text(json.dumps(split), encoding="utf-8")
    write_hook(folder / "cifar10", "torchvision.datasets.cifar", _CIFAR)
    deepspeed = {
        "deepspeed_multinode_launcher": "standard",
        "gradient_accumulation_steps": 1,
        "zero3_init_flag": True,
        "zero_stage": 3,
    }
    fsdp = {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
    }
    sequences = {"deepspeed_config_file": f"{_ALST}/sp-alst.ds-config.json", "zero3_init_flag": False}
    common = {"compute_environment": "LOCAL_MACHINE", "num_processes": 8}
    for name, distributed in (
        ("accelerate_zero3", {"distributed_type": "DEEPSPEED", "deepspeed_config": deepspeed}),
        ("accelerate_zero2", {"distributed_type": "DEEPSPEED", "deepspeed_config": {**deepspeed, "zero_stage": 2}}),
        ("accelerate_fsdp", {"distributed_type": "FSDP", "fsdp_config": fsdp}),
        ("alst", {"distributed_type": "DEEPSPEED", "deepspeed_config": sequences}),
        ("accelerate_ddp", {"distributed_type": "MULTI_GPU"}),
    ):
        # accelerate refuses this beside a ds_config's file
        precision = {} if name == "alst" else {"mixed_precision": "bf16"}
        (folder / f"{name}.yaml").write_text(json.dumps(common | precision | distributed), encoding="utf-8")
