"""Seconds and kernels of a model's layers: matmuls and attention by their shapes, the rest by a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, prod
from pathlib import Path
from typing import Any, Literal, get_args

from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.costs.collectives import Collective
from zerokit.hardware.costs.kernels import Kernel
from zerokit.memory.adapters import is_target
from zerokit.memory.loss_chunks import chunk_tokens
from zerokit.memory.tensor_parallel import HEADS, divided_side
from zerokit.memory.tiled_mlp import num_tiles
from zerokit.memory.training_run import TrainingRun
from zerokit.memory.traits import has_window, norm_of
from zerokit.models import ModelShape
from zerokit.models.tensors import Tensor
from zerokit.step_time.streams import Work

Part = Literal["layer_forward", "layer_backward", "outside_forward", "outside_backward"]
PARTS: tuple[Part, ...] = get_args(Part)
LAUNCH = 16.3e-6
"""Seconds of a launch with which the host's times in the table were made."""
_WITH_FLASH = 8
_PREFERS_CUDNN = (9, 10)
_MOST_CUDNN = {9: 256, 10: 128}
"""Elements of a head, by compute capability (torch sdp_utils.cpp, cuDNN 9.10 and later)."""


@cache
def table() -> Mapping[str, Any]:
    """`kernels.json`: by model type the memory-bound kernels of a layer and of what is outside the layers.

    Each row has the number of kernels, CPU microseconds of all launches, and bytes per token: multiples of
    sizes of the model. `modules` counts those that run in a layer and outside the layers.
    `python -m tests.validation.planning.kernel_table` writes it from rehearsals.
    """
    read: dict[str, Any] = json.loads(Path(__file__).with_name("kernels.json").read_text(encoding="utf-8"))
    return read


def host_seconds(costs: CardCosts, name: str) -> float:
    """CPU seconds of an event, by its microseconds in `kernels.json`."""
    return float(table()["host"][name]) * 1e-6 * costs.launch("kernel") / LAUNCH


def moving_seconds(costs: CardCosts, num_bytes: float, kernels: float) -> float:
    """Seconds of memory-bound kernels that read and write so many bytes in all."""
    least = costs.memory_bound(0)
    return kernels * least + costs.memory_bound(round(num_bytes)) - least


def rows_of(model: ModelShape) -> Mapping[str, Any]:
    """The rows of a model type, else of a type that is alike."""
    types = table()["types"]
    name = model.model_type
    name = table()["alike"].get(name, name)
    if name not in types:
        name = "mixtral" if model.is_moe else "opt" if norm_of(model) == "layer" else "mistral"
    found: Mapping[str, Any] = types[name]
    return found


@dataclass(frozen=True)
class Batch:
    """A micro-batch."""

    sequences: int
    seq_len: float
    dtype: str
    ranks: int = 1
    """That share each sequence."""
    last_only: bool = False
    """Logits are made for the last token of each sequence alone, as in generation."""

    @property
    def tokens(self) -> float:
        """Of one rank in all sequences."""
        return self.sequences * self.seq_len / self.ranks

    @property
    def logits(self) -> float:
        """Tokens of one rank for which logits are made."""
        return self.sequences if self.last_only else self.tokens


class Layers:
    """The work of a model's parts in one forward and backward pass of a micro-batch."""

    def __init__(self, run: TrainingRun, model: ModelShape, costs: CardCosts, batch: Batch) -> None:
        self.run, self.model, self.costs, self.batch = run, model, costs, batch
        self.count = max(self.model.num_hidden_layers or 1, 1)
        self.rows = rows_of(self.model)
        self._scale = costs.launch("kernel") / LAUNCH
        self._sizes = sizes_of(self.model, batch.seq_len, tensor=run.parallelism.tensor)
        self._e = 4 if batch.dtype == "float32" else 2

    @cached_property
    def works(self) -> dict[Part, Work]:
        """Of one layer, and of everything outside the layers, in one direction."""
        return {part: self._work(part) for part in PARTS}

    def least_seconds(self, *, checkpointing: bool) -> float:
        """A micro-batch takes no less: its kernels without a pause."""
        return self._least + (self._recomputed if checkpointing else 0.0)

    @cached_property
    def _least(self) -> float:
        times = {part: self.count if part.startswith("layer") else 1 for part in PARTS}
        return sum(times[part] * work.device for part, work in self.works.items())

    @cached_property
    def _recomputed(self) -> float:
        return self.count * (self.works["layer_forward"].device - self.not_recomputed.device)

    def sizes(self, *, in_layer: bool) -> tuple[int, ...]:
        """Elements of each parameter of a layer or outside."""
        return self._tensor_sizes[in_layer]

    @cached_property
    def num_modules(self) -> float:
        """Modules that run in a layer, adapters included."""
        return float(self.rows["modules"][0]) * self._parts + 2 * len(self.adapters())

    @cached_property
    def _parts(self) -> float:
        """How many rows of the table a layer is: more than one in a model with more decoder than encoder layers."""
        if not self.model.is_encoder_decoder:
            return 1.0
        counts = [one.count for one in self.model.tensors if ".*." in one.name and one.count > 1]
        return sum(counts) / len(counts) / self.count

    @cached_property
    def _tensor_sizes(self) -> tuple[tuple[int, ...], ...]:
        found = []
        for in_layer in (False, True):
            ours = [one for one in self.model.tensors if (".*." in one.name) == in_layer]
            times = [max(round(one.count / self.count), 1) if in_layer else one.count for one in ours]
            # zero.Init divides whole parameters among all ranks before there are groups.
            whole = self.run.parallelism.tensor if self.run.zero_stage == 3 else 1
            parts = [ceil(one.elements / max(prod(self._divisor(one)), whole)) for one in ours]
            sizes = (size for part, count in zip(parts, times, strict=True) for size in [part] * count)
            found.append(tuple(sizes))
        return tuple(found)

    def _work(self, part: Part) -> Work:
        backward = part.endswith("backward")
        matmuls = Work()
        for tensor in self.model.tensors:
            if len(tensor.shape) < 2 or tensor.kind == "norm":
                continue
            in_layer = ".*." in tensor.name
            if in_layer == part.startswith("layer"):
                per = tensor.count / self.count if in_layer else tensor.count
                tiles = self._tiles if in_layer and tensor.kind == "mlp" else 1
                matmuls += self._linear(tensor, backward=backward, tiles=tiles) * per * tiles
                if backward and tiles > 1:  # the MLP runs again, and each tile adds to fp32 gradients
                    matmuls += self._linear(tensor, backward=False, tiles=tiles) * per * tiles
                    added = 10 * tensor.elements * (self.run.adapter is None)
                    matmuls += self._memory_bound(tiles, tiles * added, 0.0)
        found = self._table_work(part)
        if part.startswith("layer"):
            found = (found + self._attention(backward=backward)) * self._parts
            if self.batch.ranks > 1:  # into the order of the exchange, and out of it
                found += self._memory_bound(10, 4 * sum(self.exchanged), 0.0)
        for kind, size in self.tensor_collectives(part):
            if kind == "all_gather":  # parts of the logits are put together
                found += self._memory_bound(1, 2 * size, 0.0)
        return found + matmuls

    # ---- ranks that share sequences or layers

    @cached_property
    def exchanged(self) -> tuple[float, ...]:
        """Bytes of a rank's part of queries, keys, values and context; each rank has at least one head of keys."""
        heads = self.model.num_attention_heads or 1
        q, kv = self._sizes["q"], max(self._sizes["kv"], self.batch.ranks * self._sizes["q"] / heads)
        return tuple(self._e * self.batch.tokens * size for size in (q, kv, kv, q))

    @property
    def kept_bytes(self) -> float:
        """Of the hidden states that enter a layer."""
        return self._e * self.batch.tokens * self._sizes["h"]

    def tensor_collectives(self, part: Part) -> list[tuple[Collective, float]]:
        """Collectives among ranks that share layers, with their bytes."""
        if self.run.parallelism.tensor == 1:
            return []
        own = [one for one in self.model.tensors if len(one.shape) == 2 and self._divisor(one) != (1, 1)]
        backward, in_layer = part.endswith("backward"), part.startswith("layer")
        summed = sum((self._divisor(one)[0] == 1) != backward for one in own if ".*." in one.name)
        if in_layer or backward or self.model.tie_word_embeddings:  # a tied embedding is summed, too
            return [("all_reduce", self.kept_bytes)] * (summed if in_layer else 1)
        return [("all_gather", self._e * self.batch.logits * self._sizes["V"])]

    def _divisor(self, tensor: Tensor) -> tuple[int, int]:
        """By what tensor parallelism divides the outputs and the inputs of a weight."""
        ranks, module = self.run.parallelism.tensor, tensor.name.removesuffix(".weight").removesuffix(".bias")
        is_head = module.endswith(HEADS) or (self.model.tie_word_embeddings and tensor.kind == "embedding")
        in_layer = ".*." in tensor.name
        side = divided_side(module, tensor.kind, in_layer=in_layer, is_head=is_head and not in_layer)
        return ranks if side == "outputs" else 1, ranks if side == "inputs" else 1

    @cached_property
    def not_recomputed(self) -> Work:
        """The last matmul of a layer, if nothing after it saves a tensor: checkpointing stops before it.

        Source: torch utils/checkpoint.py, early stop.
        """
        ends = [one for one in self.model.tensors if ".*." in one.name and one.kind == "mlp" and len(one.shape) == 2]
        if not ends or self.model.is_moe or self.rows["attention"] != "sdpa" or self.rows.get("norm_last"):
            return Work()
        return self._linear(ends[-1], backward=False)

    def adapters(self) -> tuple[int, ...]:
        """Elements of each adapter matrix of a layer."""
        lora, found = self.run.lora, []
        for tensor in self.model.tensors:
            if lora is not None and self._is_adapted(tensor):
                found += [lora.rank * tensor.shape[1], lora.rank * tensor.shape[0]]
        return tuple(found)

    def _memory_bound(self, kernels: float, num_bytes: float, host: float) -> Work:
        seconds = moving_seconds(self.costs, num_bytes, kernels)
        return Work(host * self._scale, kernels, memory_bound=max(seconds, 0.0))

    def _table_work(self, part: Part) -> Work:
        kernels, microseconds, sizes = self.rows[part]
        shares = {"V": self.batch.logits / self.batch.tokens}
        num_bytes = sum(times * self._sizes.get(name, 0.0) * shares.get(name, 1.0) for name, times in sizes.items())
        if part == "layer_backward" and self._tiles > 1:  # the MLP runs again
            num_bytes += self.rows["layer_forward"][2].get("f", 0.0) * self._sizes["f"]
        num_bytes *= self.batch.tokens * (self._e / 2 if self._e == 4 else 1)
        if part == "outside_backward":
            # The gradient of the token table; a tied table has that of the output matrix, too.
            table_bytes = self._e * self._sizes["h"] * self._sizes["V"]
            num_bytes += table_bytes * (4 if self.model.tie_word_embeddings else 1)
            if self.run.chunked_loss == "zerokit":  # each chunk adds to an fp32 gradient
                chunks = self.batch.tokens / chunk_tokens(round(self._sizes["V"]))
                num_bytes += chunks * 10 * self._sizes["h"] * self._sizes["V"]
        return self._memory_bound(kernels, num_bytes, microseconds * 1e-6)

    @cached_property
    def _tiles(self) -> int:
        """Parts of the tokens on which an MLP runs one after another: training/long_sequences.py."""
        return num_tiles(self.batch.tokens, self._sizes["h"]) if self.run.tiled_mlp and not self.model.is_moe else 1

    def _is_adapted(self, tensor: Tensor) -> bool:
        adapter = self.run.adapter
        if adapter is None or len(tensor.shape) != 2 or tensor.kind not in ("attention", "mlp"):
            return False
        return is_target(tensor.name.removesuffix(".weight"), adapter.target_modules or ())

    def _linear(self, tensor: Tensor, *, backward: bool, tiles: int = 1) -> Work:
        """Matmuls of one weight on a part of the tokens; none for a table that is looked up."""
        model, tokens, costs = self.model, max(round(self.batch.tokens / tiles), 1), self.costs
        (rows, columns), groups, times, dtype = tensor.shape[-2:], 1, 1, self.batch.dtype
        over_rows, over_columns = self._divisor(tensor)
        rows, columns = ceil(rows / over_rows), ceil(columns / over_columns)
        if tensor.kind in ("embedding", "other"):
            is_head = tensor.name.endswith(("lm_head.weight", "embed_out.weight"))
            is_table = tensor.shape[0] == model.vocab_size and model.tie_word_embeddings
            if not (is_head or is_table):
                return Work()
            tokens = max(round(self.batch.logits / tiles), 1)
        if tensor.kind == "expert" and model.experts is not None:
            groups, tokens = model.experts.num_experts, tokens * model.experts.num_experts_per_tok
            if len(tensor.shape) == 2:
                groups, tokens = 1, max(tokens // groups, 1)
        if groups > 1 and (self.costs.gpu.capability or (_WITH_FLASH, 0))[0] < _WITH_FLASH:
            times, groups, tokens = groups, 1, max(tokens // groups, 1)  # expert by expert
        if not backward:
            seconds = times * costs.matmul(tokens, rows, columns, dtype=dtype, layout="TN")
            return Work((times - 1) * LAUNCH, times, seconds) + self._adapter(tensor, backward=False)
        seconds, kernels = costs.matmul(tokens, columns, rows, dtype=dtype, layout="NN"), times
        if self.run.adapter is None:
            each = max(tokens // groups, 1)
            seconds += costs.matmul(rows, columns, each, batch=groups, dtype=dtype, layout="NT")
            kernels *= 2
        work = Work((kernels - times) * LAUNCH * (times > 1), kernels, times * seconds)
        return work + self._adapter(tensor, backward=True)

    def _adapter(self, tensor: Tensor, *, backward: bool) -> Work:
        if not self._is_adapted(tensor):
            return Work()
        lora, costs, tokens = self.run.lora, self.costs, max(round(self.batch.tokens), 1)
        if lora is None:
            return Work()
        rank, dtype = lora.rank, self.batch.dtype
        outputs, inputs = tensor.shape
        down = costs.matmul(tokens, rank, inputs, dtype=dtype, layout="TN")
        up = costs.matmul(tokens, outputs, rank, dtype=dtype, layout="TN")
        work = Work()
        if self.run.load_in_4bit:
            work += self._memory_bound(2, 2.6 * outputs * inputs, 60e-6)
        host = table()["host"]["adapter_backward" if backward else "adapter_forward"] * 1e-6
        if backward:
            moved = tokens * (4 * outputs + 6 * inputs)
            return work + Work(0.0, 4, 2 * (down + up)) + self._memory_bound(3, moved, host)
        return work + Work(0.0, 2, down + up) + self._memory_bound(2, tokens * 10 * outputs, host)

    def _attention(self, *, backward: bool) -> Work:
        """Of one layer, the mean of all."""
        model, costs, batch = self.model, self.costs, self.batch
        heads = model.num_attention_heads or 1
        head_dim = model.head_dim or (model.hidden_size or 1) // heads
        length = max(round(batch.seq_len), 1)
        kv_heads = model.num_key_value_heads or heads
        parallelism = self.run.parallelism
        heads, kv_heads = (max(one // parallelism.group_size, 1) for one in (heads, kv_heads))
        windowed = sum(has_window(model, number, length) for number in range(self.count)) / self.count
        config = model.config.get("text_config", model.config)
        window = config.get("sliding_window") if windowed else None
        causal = not self.rows.get("bidirectional")
        calls = int(self.rows.get("attentions", 1))
        if self.rows["attention"] == "eager":
            dtype = self.rows.get("scores", batch.dtype)
            return self._scores(heads, length, head_dim, backward=backward, dtype=dtype)
        work, shape = Work(), (batch.sequences, heads, kv_heads, length, length, head_dim)
        for share, is_masked in ((1 - windowed, False), (windowed, True)):
            if share <= 0:
                continue
            packed = self.run.packing and self.batch.ranks == 1  # else document by document: sequence_parallel.py
            masked = is_masked or (packed and self.run.attention_used != "flash_attention_2")
            if not masked and self._uses_math(heads, kv_heads):
                kernels, num_bytes = table()["math_attention"]["backward" if backward else "forward"]
                moved = num_bytes * batch.tokens * heads * length
                work += self._memory_bound(kernels, moved, kernels * LAUNCH) * share
                work += self._scores(heads, length, head_dim, backward=backward, dtype="float32") * share
                continue
            kernel = self._kernel(head_dim, masked=masked)
            within = window if is_masked and kernel.startswith("flash") else None
            seconds = costs.attention(
                kernel, backward, *shape, causal and not masked, dtype=batch.dtype, window=within
            )
            work += Work(0.0, 1, attention=seconds) * share
        return work * calls

    def _uses_math(self, heads: int, kv_heads: int) -> bool:
        """Before flash attention's cards, torch has no fused kernel for groups of queries: sdp_utils.cpp.

        Where there is a mask, transformers repeats keys and values: sdpa_attention.py, use_gqa_in_sdpa.
        """
        major, _ = self.costs.gpu.capability or (_WITH_FLASH, 0)
        return major < _WITH_FLASH and heads != kv_heads and self.run.attention_used == "sdpa"

    def _scores(self, heads: int, length: int, head_dim: int, *, backward: bool, dtype: str) -> Work:
        """The matmuls of attention that is written out; the table has its other kernels."""
        count = self.batch.sequences * heads
        seconds = self.costs.matmul(length, length, head_dim, batch=count, dtype=dtype)
        seconds += self.costs.matmul(length, head_dim, length, batch=count, dtype=dtype)
        return Work(0.0, 2, seconds) * (2 if backward else 1)

    def _kernel(self, head_dim: int, *, masked: bool) -> Kernel:
        """The attention kernel that torch chooses: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp."""
        used = self.run.attention_used
        if used == "eager":
            return "eager"
        if used.startswith("flash"):
            return "flash_attention_2"
        major, _ = self.costs.gpu.capability or (_WITH_FLASH, 0)
        chosen = self.rows["attention"]
        if chosen == "sdpa" and major in _PREFERS_CUDNN and head_dim <= _MOST_CUDNN[major]:
            return "cudnn"
        slower = chosen == "efficient" or masked or major < _WITH_FLASH
        return "efficient" if slower else "flash_attention_2"


def sizes_of(model: ModelShape, seq_len: float, *, tensor: int = 1) -> dict[str, float]:
    """The sizes by which the table counts bytes, on one of `tensor` ranks that share each layer."""
    heads, hidden = model.num_attention_heads or 1, model.hidden_size or 1
    head = model.head_dim or hidden // heads
    width = float(model.intermediate_size or 4 * hidden)
    kv = float((model.num_key_value_heads or heads) * head)
    sizes = {"1": 1.0, "h": float(hidden), "f": width, "q": float(heads * head), "kv": kv}
    sizes |= {"a": float(heads), "as": heads * seq_len}
    sizes = {name: size if name in ("1", "h") else size / tensor for name, size in sizes.items()}
    sizes["V"] = (model.vocab_size or 1) / (tensor if model.tie_word_embeddings else 1)
    if model.experts is not None:
        chosen, experts = model.experts.num_experts_per_tok, model.experts.num_experts
        expert = float(model.config.get("moe_intermediate_size") or width)
        sizes |= {"E": experts, "k": chosen, "kx": chosen * experts, "kh": chosen * hidden}
        sizes |= {"km": chosen * expert, "m": expert}
        sizes["sh"] = float(model.config.get("shared_expert_intermediate_size") or 0)
    return sizes
