"""What a public training script reads from the Hub, made on the spot: a tokenizer, a config, data.

No weights are written: the rehearsal builds a model from its config alone. Can be run by itself::

    python -m tests.validation.rehearsal.local_inputs FOLDER --architecture llama-3.1-8b
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.tiny import tiny_tokenizer

_LLAMA_3 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}

ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        **_LLAMA_3,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3.1-70b": {
        **_LLAMA_3,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "llama-2-7b": {
        **{key: value for key, value in _LLAMA_3.items() if key not in {"rope_theta", "rope_scaling"}},
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "torch_dtype": "float16",
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 1,
    },
    "gpt2-xl": {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 50257,
        "n_embd": 1600,
        "n_layer": 48,
        "n_head": 25,
        "n_positions": 1024,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}
"""The sizes each model was published with, in its config.json; special tokens as in `write_tokenizer`."""


def write_tokenizer(folder: Path, *, vocab_size: int = 320, model_max_length: int = 131072) -> None:
    """Write the tiny tokenizer (320 entries, chat template) into `folder`, as a model's own tokenizer.

    Args:
        folder: made if missing.
        vocab_size: entries that no text uses are added up to this number. Scripts compare it with the
            model's embeddings: ``run_clm.py`` resizes them to the tokenizer's size under ZeRO-3, where it
            sees partitioned embeddings of length 0.
        model_max_length: in tokens; where scripts such as ``run_clm.py`` take their longest block from.
    """
    tokenizer = tiny_tokenizer(folder)
    tokenizer.model_max_length = model_max_length
    tokenizer.save_pretrained(folder)
    # Under the name that transformers 4 knows, too.
    settings = folder / "tokenizer_config.json"
    written = json.loads(settings.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(written), encoding="utf-8")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary.update({f"<|unused_{number}|>": number for number in range(len(vocabulary), vocab_size)})
    file.write_text(json.dumps(content), encoding="utf-8")


def write_model_config(folder: Path, architecture: str = "llama-3.1-8b", **sizes: Any) -> None:
    """Write ``config.json`` of a well-known model into `folder`, without weights.

    Args:
        folder: made if missing.
        architecture: a key of `ARCHITECTURES`.
        sizes: keys of the config to set otherwise, such as ``num_hidden_layers=2``.

    Raises:
        KeyError: the architecture is not in `ARCHITECTURES`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {**ARCHITECTURES[architecture], **sizes}
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def write_model(folder: Path, architecture: str = "llama-3.1-8b", **sizes: Any) -> None:
    """Write a model folder as a Hub repository has it, tokenizer and config, but no weights."""
    write_model_config(folder, architecture, **sizes)
    write_tokenizer(folder, vocab_size=sizes.get("vocab_size", ARCHITECTURES[architecture]["vocab_size"]))


def write_text_dataset(folder: Path, *, kilobytes: int = 400) -> None:
    """Write Python's own language reference as training data, about `kilobytes` of it.

    ``text/train.txt`` and ``text/validation.txt`` are plain lines, ``json/train.json`` one
    ``{"text": ...}`` per topic, ``chat/train.jsonl`` and ``chat/test.jsonl`` one
    ``{"messages": [...]}`` per topic. Each folder can be given to ``datasets.load_dataset`` by itself.
    """
    topics = _topics(kilobytes * 1000)
    train, held_out = topics[: -max(1, len(topics) // 10)], topics[-max(1, len(topics) // 10) :]
    for name in ("text", "json", "chat"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for file, part in (("train", train), ("validation", held_out)):
        (folder / "text" / f"{file}.txt").write_text("\n".join(body for _, body in part), encoding="utf-8")
    _write_lines(folder / "json" / "train.json", [{"text": body} for _, body in train])
    for file, part in (("train", train), ("test", held_out)):
        _write_lines(folder / "chat" / f"{file}.jsonl", [_conversation(name, body) for name, body in part])


def _topics(characters: int) -> list[tuple[str, str]]:
    """Name and body of the reference's topics in alphabetical order, up to `characters` in all."""
    from pydoc_data.topics import topics

    chosen: list[tuple[str, str]] = []
    for name, body in sorted(topics.items()):
        if characters <= 0:
            break
        chosen.append((name, body))
        characters -= len(body)
    return chosen


def _conversation(name: str, body: str) -> dict[str, list[dict[str, str]]]:
    question = f"What does the Python reference say about {name}?"
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": body}]}


def _write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--architecture", choices=sorted(ARCHITECTURES), default="llama-3.1-8b")
    parser.add_argument("--sizes", type=json.loads, default={}, help='such as {"num_hidden_layers": 2}')
    options = parser.parse_args()
    write_model(options.folder / "model", options.architecture, **options.sizes)
    write_text_dataset(options.folder / "data")


if __name__ == "__main__":
    _main()
