"""Makes rows of `zerokit/step_time/kernels.json`: the memory-bound kernels of a layer, by model type.

    python -m tests.validation.planning.kernel_table mistral qwen3

Small models of two and of three layers are rehearsed on one GPU without ZeRO; the difference is a layer.
Their sizes differ from each other, so that the elements of a tensor tell by which size it grows.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig

from tests.rehearsal import commands
from tests.validation.memory.rehearsed import STEPS, Point
from zerokit.hardware.costs.names import short_name
from zerokit.models import catalogue, load_model_shape
from zerokit.rehearsal.timing.operators import Call, TensorUse, bytes_moved, class_of_kernel
from zerokit.step_time.layers import sizes_of, table

SCRIPT = Path(__file__).with_name("kernel_dump.py")
BATCH, SEQ_LEN = 4, 512
_PASSES = {"softmax": 1.15, "layer_norm": 1.45, "rms_norm": 1.45}
"""As figures.json has them."""
_PHASES = {"forward": ("forward", "loss"), "backward": ("backward",)}
_SMALL = {
    **{"hidden_size": 456, "intermediate_size": 1408, "num_attention_heads": 6, "num_key_value_heads": 2},
    **{"head_dim": 80, "vocab_size": 5003, "moe_intermediate_size": 352, "num_experts_per_tok": 3},
    **{"num_experts": 16, "num_local_experts": 16, "shared_expert_intermediate_size": 1600},
    **{"n_embd": 480, "n_head": 6, "n_inner": 1408, "d_model": 456, "d_ff": 1408, "d_kv": 80, "num_heads": 6},
    **{"ffn_dim": 1408, "word_embed_proj_dim": 456},
}
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers")


def _point(model_type: str, layers: int) -> Point:
    found = next(one for one in catalogue.entries() if one.config["model_type"] == model_type)
    changes: dict[str, Any] = {name: size for name, size in _SMALL.items() if name in found.config}
    changes |= {name: layers for name in _LAYERS if name in found.config}
    if model_type in ("phi3", "smollm3"):
        changes["pad_token_id"] = 0  # by default outside the small vocabulary
    if model_type == "deepseek_v2":
        changes["num_key_value_heads"] = changes["num_attention_heads"]  # a key for each head
    if "head_dim" not in load_model_shape({**found.config, **changes}).config:
        changes["hidden_size"] = 480  # a multiple of the heads
    shape = load_model_shape({**found.config, **changes})
    if shape.is_encoder_decoder:
        changes |= {"decoder_start_token_id": 0, "pad_token_id": 0}
    attention = "sdpa" if shape.has_sdpa else "eager"
    sizes = {"num_gpus": 1, "micro_batch_size": BATCH, "seq_len": SEQ_LEN}
    return Point(model_type, found.id, {"stage": 0}, attention=attention, changes=changes, **sizes)


@cache
def _kernels(model_type: str, layers: int) -> dict[str, Any]:
    point = _point(model_type, layers)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as out:
        description = Path(folder) / "point.json"
        description.write_text(json.dumps(point.description()), encoding="utf-8")
        words = ["--time", "--no-advise", "--num-gpus", 1, "--gpu", "H100-SXM", "--gpu-memory", "2000GiB"]
        written = Path(out) / "kernels.json"
        words += ["--format", "json", "--steps", STEPS + 1, SCRIPT, description, written]
        done = commands.rehearse(*words, cwd=Path(folder))
        assert written.is_file(), done.err[-2000:]
        found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
        return found


def _count(model_type: str, layers: int, side: str) -> tuple[int, float, Counter[str]]:
    """Memory-bound kernels, microseconds of the host, and bytes per token by size, in one direction."""
    found, tokens = _kernels(model_type, layers), BATCH * SEQ_LEN
    sizes = sizes_of(load_model_shape(_point(model_type, layers).config), SEQ_LEN)
    number, moved = 0, Counter[str]()
    own = [one for one in found["kernels"] if one[0] in _PHASES[side]]
    before = [one[2] for one in found["kernels"] if one[0] in _PHASES["forward"]]
    start = 0 if side == "forward" else max(before)
    for _, key, _ in own:
        if key >= len(found["keys"]):
            continue  # of a stand-in
        name, uses = found["keys"][key]["name"], found["keys"][key]["uses"]
        tensors = tuple(TensorUse(**{**use, "sizes": tuple(use["sizes"])}) for use in uses)
        call = Call(name, tensors)
        if class_of_kernel(name) != "memory_bound" or not call.tensors:
            continue
        number += 1
        times = next((factor for part, factor in _PASSES.items() if part in short_name(name)), 1.0)
        for tensor in call.tensors:
            alone = bytes_moved(Call(name, (tensor,)))
            size = _size_of(tensor.elements / tokens, sizes)
            if size is not None:
                moved[size[0]] += times * alone / tokens / sizes[size[0]]
    return number, (max(one[2] for one in own) - start) / 1e3, moved


def _size_of(per_token: float, sizes: dict[str, float]) -> tuple[str, float] | None:
    """The size, and the multiple of it, that a tensor has per token."""
    for times in (1, 2, 3, 0.5, 0.25, 1 / 3, 1.5, 4):
        for name, size in sizes.items():
            if size and abs(per_token - size * times) < 1e-6:
                return name, times
    return None


def rows(model_type: str) -> dict[str, Any]:
    """The rows of a model type; hooks of gradients are counted apart (`host` in the file)."""
    found: dict[str, Any] = {}
    hook = table()["host"]["hook_0"]
    tensors = load_model_shape(_point(model_type, 2).config).tensors
    own = sum(one.count for one in tensors if ".*." in one.name) / 2
    outside = sum(one.count for one in tensors if ".*." not in one.name)
    for side in _PHASES:
        two, three = (_count(model_type, layers, side) for layers in (2, 3))
        of_hooks = own * (side == "backward")
        kernels, host = three[0] - two[0] - of_hooks, three[1] - two[1] - of_hooks * hook
        moved = {name: three[2][name] - two[2][name] for name in three[2]}
        hooks = (2 * own + outside) * (side == "backward")
        rest = {name: two[2][name] - 2 * moved.get(name, 0) for name in two[2]}
        found[f"layer_{side}"] = [round(kernels), round(host), _rounded(moved)]
        left = two[0] - 2 * kernels - hooks, two[1] - 2 * host - hooks * hook
        found[f"outside_{side}"] = [*map(round, left), _rounded(rest)]
    return found


def modules(model_type: str) -> list[int]:
    """Modules whose forward runs, of a layer and outside the layers: all but lists of others."""
    counts = []
    for layers in (2, 3):
        keys = _point(model_type, layers).config
        architecture = load_model_shape(keys).architecture
        config = AutoConfig.for_model(keys.pop("model_type"), **keys)
        with torch.device("meta"):
            model = getattr(transformers, architecture)(config)
        counts.append(sum(type(one) not in (torch.nn.ModuleList, torch.nn.ModuleDict) for one in model.modules()))
    layer = counts[1] - counts[0]
    return [layer, counts[0] - 2 * layer]


def _rounded(moved: dict[str, float]) -> dict[str, float]:
    return {name: round(size, 2) for name, size in moved.items() if abs(size) > 0.01}


def main() -> None:
    """Print the rows of the given model types."""
    for model_type in sys.argv[1:]:
        print(json.dumps({model_type: {"modules": modules(model_type), **rows(model_type)}}))


if __name__ == "__main__":
    main()
