"""What scripts of 2023 read: sentencepiece's tokenizers, that of Qwen's first models, old names of torch."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.local_inputs import ARCHITECTURES

_LLAMA = ARCHITECTURES["llama-2-7b"] | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1
_MERGED = 2
"""Kinds of a piece, and of a model: byte pairs."""
_CHINESE_ALPACA = 49953
"""Pieces of its tokenizer, which counts its padding beyond them."""
_QWENS_CODE = '''
from transformers import PreTrainedTokenizerFast


class QWenTokenizer(PreTrainedTokenizerFast):
    """The tokenizer that lies beside it, with the names that Qwen's own has for three tokens."""

    eod_id = property(lambda self: self.convert_tokens_to_ids("<|endoftext|>"))
    im_start_id = property(lambda self: self.convert_tokens_to_ids("<|im_start|>"))
    im_end_id = property(lambda self: self.convert_tokens_to_ids("<|im_end|>"))
'''
_TORCH_SIX = """
import collections.abc, math, sys, types

six = types.ModuleType("torch._six")
six.inf, six.container_abcs = math.inf, collections.abc
six.string_classes, six.int_classes = (str, bytes), int
sys.modules["torch._six"] = six
"""


def write_earlier(folder: Path) -> None:
    """Make in `folder` what Alpaca-LoRA, QLoRA, Yi, Chinese-LLaMA-Alpaca, Qwen and MAE read."""
    llama = folder / "llama-2-7b"
    _write_sentencepiece(llama, _LLAMA["vocab_size"], {"model_max_length": 4096})
    _write_json(llama / "config.json", _LLAMA)
    _write_sentencepiece(folder / "chinese-alpaca", _CHINESE_ALPACA, {"pad_token": "[PAD]"})
    (folder / "alpaca").mkdir(exist_ok=True)
    shutil.copy(folder / "alpaca.json", folder / "alpaca" / "alpaca.json")
    _add_qwens_names(folder / "qwen-with-eod")
    turns = [{"from": "user", "value": "What is it?"}, {"from": "assistant", "value": "A number. " * 40}]
    _write_json(folder / "qwen-turns.json", [{"id": str(line), "conversations": turns} for line in range(64)])
    (folder / "torch-six").mkdir(exist_ok=True)
    (folder / "torch-six" / "sitecustomize.py").write_text(_TORCH_SIX, encoding="utf-8")


def _write_sentencepiece(folder: Path, pieces: int, settings: dict[str, Any]) -> None:
    """Llama's slow tokenizer as it is downloaded: bytes, characters, and words that no text uses."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {"<unk>": _UNKNOWN, "<s>": _CONTROL, "</s>": _CONTROL}
    kinds |= {f"<0x{byte:02X}>": _BYTE for byte in range(256)}
    kinds |= dict.fromkeys("▁" + "".join(map(chr, range(ord("!"), ord("~") + 1))), _NORMAL)
    kinds |= {f"▁unused{number}": _NORMAL for number in range(len(kinds), pieces)}
    model = b"".join(
        _part(1, _part(1, word.encode()) + b"\x15" + struct.pack("<f", -number) + _number(3, kind))
        for number, (word, kind) in enumerate(kinds.items())
    )
    model += _part(2, _number(3, _MERGED) + _number(4, pieces) + _number(35, True))  # unknown ones as bytes
    model += _part(3, _part(1, b"identity") + _number(3, True) + _number(4, False) + _number(5, True))
    (folder / "tokenizer.model").write_bytes(model)
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", **named, **settings})


def _part(field: int, content: bytes) -> bytes:
    """A field of protobuf that has a length."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes([low | 128]) + _varint(rest) if rest else bytes([low])


def _add_qwens_names(folder: Path) -> None:
    (folder / "tokenization_qwen.py").write_text(_QWENS_CODE.lstrip(), encoding="utf-8")
    file = folder / "tokenizer_config.json"
    own = {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}
    settings = json.loads(file.read_text(encoding="utf-8"))
    _write_json(file, settings | {"tokenizer_class": "QWenTokenizer", "auto_map": own})


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
