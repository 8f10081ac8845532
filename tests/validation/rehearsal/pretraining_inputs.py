"""What scripts read that take files of their own making: tokens, tokenizers, weights, in their formats."""

from __future__ import annotations

import json
import math
import pickle
import random
from array import array
from pathlib import Path
from typing import Any

from tests.validation.rehearsal.import_hooks import write_hook

_QWEN_LAYERS, _QWEN_WIDTH, _QWEN_INNER, _QWEN_KEYS, _QWEN_WORDS = 24, 896, 4864, 128, 151936
_NANOCHATS_SPECIAL = (
    "bos user_start user_end assistant_start assistant_end python_start python_end output_start output_end"
)
_GPT2_ENCODING = """
ranks = {bytes([byte]): byte for byte in range(256)}
module.get_encoding = lambda name: module.Encoding(
    name, pat_str=".", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
)
"""
"""Gives an encoding of bytes for tiktoken's, which are downloaded and compared with their checksums."""


def write_pretraining(folder: Path) -> None:
    """Make in `folder` what nanochat, llm.c, torchtune, torchtitan, verl, Medusa and others read."""
    import numpy

    _write_nanochat(folder / "nanochat-base")
    _write_tokens(folder / "llm.c" / "dev" / "data" / "fineweb10B")
    write_hook(folder / "gpt2-encoding", "tiktoken", _GPT2_ENCODING)
    _write_qwen(folder / "Qwen2.5-0.5B-Instruct", folder / "qwen" / "tokenizer.json")
    texts = [{"text": "It is a number. " * 500} for _ in range(64)]
    _write_lines(folder / "torchtitan" / "tests" / "assets" / "c4_test" / "data.json", texts)
    turns = [{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A number. " * 40}]
    (folder / "mistral.json").write_text(json.dumps([turns] * 256), encoding="utf-8")
    ids = [{"input_ids": [*range(100, 612)], "label": [*range(100, 612)]}] * 4096
    numpy.save(folder / "sft.npy", numpy.array(ids, dtype=object))
    pictures = folder / "pictures.json"
    (folder / "PATH_TO_CAMBRIAN_737K_ANNOTATION").write_bytes(pictures.read_bytes())
    (folder / "train").unlink(missing_ok=True)
    (folder / "train").symlink_to(folder / "images" / "train")  # where those pictures are looked for
    for split in ("train", "test"):
        answers = [{"extra_info": {"question": "What is it?", "answer": "A number. " * 20}}] * 512
        _write_parquet(folder / "gsm8k" / f"{split}.parquet", answers, 512)


def _write_nanochat(folder: Path, vocabulary: int = 2**15) -> None:
    """The tokenizer that its tok_train writes, whose words are bytes and pairs of them, and two shards."""
    import torch

    special = [f"<|{name}|>" for name in _NANOCHATS_SPECIAL.split()]
    words = [bytes([byte]) for byte in range(256)]
    words += [bytes([first, second]) for first in range(256) for second in range(256)]
    words = words[: vocabulary - len(special)]
    state = {
        "name": "rustbpe",
        "pat_str": r"\S+|\s+",
        "mergeable_ranks": {word: rank for rank, word in enumerate(words)},
        "special_tokens": {word: len(words) + number for number, word in enumerate(special)},
    }
    (folder / "tokenizer").mkdir(parents=True, exist_ok=True)
    # As pickle writes a tiktoken.Encoding, which is not imported here.
    made = b"\x80\x02ctiktoken.core\nEncoding\n)\x81" + pickle.dumps(state, 2)[2:-1] + b"b."
    (folder / "tokenizer" / "tokenizer.pkl").write_bytes(made)
    torch.save(torch.full((vocabulary,), 2, dtype=torch.int32), folder / "tokenizer" / "token_bytes.pt")
    for shard in (0, 1):
        rows = [{"text": "It is a number. " * (20 + 7 * (line % 30))} for line in range(16 * 130)]
        _write_parquet(folder / "base_data_climbmix" / f"shard_{shard:05d}.parquet", rows, 130)


def _write_tokens(folder: Path, count: int = 600_000) -> None:
    """Shards as llm.c's dev/data/fineweb.py writes them: 256 integers, then tokens of 16 bits."""
    folder.mkdir(parents=True, exist_ok=True)
    made_up = random.Random(0)
    header = array("i", [20240520, 1, count, *[0] * 253]).tobytes()
    tokens = array("H", (made_up.randrange(50257) for _ in range(count))).tobytes()
    for name in ("fineweb_train_000001.bin", "fineweb_val_000000.bin"):
        (folder / name).write_bytes(header + tokens)


def _write_qwen(folder: Path, tokenizer: Path) -> None:
    """Qwen2.5-0.5B as it is downloaded, for scripts that read weights themselves: a hole of zeros."""
    folder.mkdir(exist_ok=True)
    model = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = "".join(f"{pair}\n" for pair in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
    sizes = {"hidden_size": _QWEN_WIDTH, "num_attention_heads": 14, "num_key_value_heads": 2}
    config = sizes | {"model_type": "qwen2", "tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_zeros(folder / "model.safetensors", _qwens_shapes())


def write_zeros(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Write weights in bfloat16 as safetensors: names and shapes, and a hole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + end)


def decoder_shapes(
    *, words: int, width: int, inner: int, keys: int, layers: int, biases: tuple[str, ...] = ()
) -> dict[str, tuple[int, ...]]:
    """Of the weights of a decoder like Llama's, by name, without a head of its own.

    Args:
        words: of the vocabulary.
        width: of the hidden states, and of all queries.
        inner: width of the feed-forward layer.
        keys: width of all keys, and of all values.
        layers: how many.
        biases: the projections that have one.
    """
    of_layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (inner, width),
        "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
    }
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, width)}
    for layer in range(layers):
        for name, shape in of_layer.items():
            found[f"model.layers.{layer}.{name}.weight"] = shape
            if name.endswith(biases):
                found[f"model.layers.{layer}.{name}.bias"] = shape[:1]
    return found | {"model.norm.weight": (width,)}


def _qwens_shapes() -> dict[str, tuple[int, ...]]:
    sizes = {"width": _QWEN_WIDTH, "inner": _QWEN_INNER, "keys": _QWEN_KEYS, "layers": _QWEN_LAYERS}
    return decoder_shapes(words=_QWEN_WORDS, **sizes, biases=("q_proj", "k_proj", "v_proj"))


def _write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_parquet(file: Path, rows: list[dict[str, Any]], group: int) -> None:
    from pyarrow import Table, parquet

    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(rows), file, row_group_size=group)
