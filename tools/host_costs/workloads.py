"""Training steps of tiny modules, in which nearly all time is Python's.

One rank plays four: torch's fake process group has collectives that do nothing, and what DeepSpeed compiles is
replaced, so that no kernel takes time.
"""

from __future__ import annotations

import itertools
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "RANK": "0", "LOCAL_RANK": "0"}
os.environ |= {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29513"}

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], None]
RANKS = int(os.environ["WORLD_SIZE"])
WIDTH, LENGTH, TOKENS = 8, 4, 16


@dataclass(frozen=True)
class Workload:
    """A training step."""

    model: str
    """"blocks", "attention", "llama" or "gpt2"."""
    stage: int
    layers: int
    checkpointing: str = ""
    """"", "reentrant" or "not reentrant"."""
    accumulation: int = 1
    offload: bool = False
    """Of the optimizer."""
    clipping: float = 1.0
    by: str = "deepspeed"
    """"deepspeed": its engine alone; "accelerate": prepared by it."""
    precision: str = "bf16"
    threshold: int = 0
    """Elements of parameters that stage 3 does not partition."""
    bucket: int = 1000
    """Elements of a bucket."""
    overlap: bool = True
    optimizer: str = "deepspeed"
    """"deepspeed": the one that the ds_config names; "torch": a client's."""

    @property
    def ds_config(self) -> dict[str, Any]:
        zero: dict[str, Any] = {
            "stage": self.stage,
            "overlap_comm": self.overlap,
            "contiguous_gradients": True,
            "reduce_bucket_size": self.bucket,
            "allgather_bucket_size": self.bucket,
        }
        if self.stage == 3:
            zero |= {"stage3_param_persistence_threshold": self.threshold, "stage3_prefetch_bucket_size": self.bucket}
        if self.offload:
            zero["offload_optimizer"] = {"device": "cpu"}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": self.accumulation,
            "gradient_clipping": self.clipping,
            "steps_per_print": 10**9,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": zero,
            **({} if self.optimizer == "torch" else {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}),
            **({} if self.precision == "fp32" else {self.precision: {"enabled": True}}),
        }


def workloads() -> Iterator[Workload]:
    """Those that make the table: each stage in several sizes, and what changes its way."""
    for stage, layers in itertools.product(range(4), (2, 9, 30)):
        yield Workload("blocks", stage, layers)
    for stage, layers in ((0, 200), (0, 1200), (1, 500), (2, 150), (3, 120)):
        yield Workload("blocks", stage, layers, bucket=20_000)
    for stage in range(4):
        yield Workload("llama", stage, 5, "not reentrant", accumulation=2)
        yield Workload("gpt2", stage, 4, "reentrant", clipping=0.0, overlap=False)
        yield Workload("attention", stage, 6, "not reentrant", bucket=10_000)
        yield Workload("blocks", stage, 14, "reentrant", accumulation=2, clipping=0.0)
        yield Workload("blocks", stage, 5, optimizer="torch")
        yield Workload("blocks", stage, 40, optimizer="torch", bucket=5000)
    for stage in (1, 2, 3):
        yield Workload("blocks", stage, 12, offload=True)
        yield Workload("llama", stage, 3, by="accelerate", accumulation=2)
    yield Workload("llama", 3, 6, threshold=10_000)
    yield Workload("blocks", 2, 12, precision="fp16")
    yield Workload("blocks", 3, 12, precision="fp16")


class Block(nn.Module):
    """Weights, norm and activation."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.activation = nn.LayerNorm(WIDTH), nn.GELU()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = inputs + self.norm(self.out(self.activation(self.into(inputs))))
        return result


class Attending(nn.Module):
    """A block with attention, whose output projection is read and not called."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.block = Block()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        attended, _ = self.attention(inputs, inputs, inputs)
        result: torch.Tensor = self.block(inputs + attended)
        return result


class Layers(nn.Module):
    """Of one kind, one after the other."""

    def __init__(self, kind: type[nn.Module], workload: Workload) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for _ in range(workload.layers))
        self.checkpointing = workload.checkpointing

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        is_reentrant = self.checkpointing == "reentrant"
        for layer in self.layers:
            inputs = checkpoint(layer, inputs, use_reentrant=is_reentrant) if self.checkpointing else layer(inputs)
        return inputs


def _model(workload: Workload) -> tuple[nn.Module, Callable[[Any], torch.Tensor]]:
    """A model, and the loss of a step by a callable like it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kinds: dict[str, type[nn.Module]] = {"blocks": Block, "attention": Attending}
    if workload.model in kinds:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[workload.precision]
        inputs = torch.ones(1, LENGTH, WIDTH, dtype=dtype, requires_grad=True)
        return Layers(kinds[workload.model], workload), lambda model: model(inputs).float().sum()
    sizes: dict[str, Any] = {"vocab_size": TOKENS, "use_cache": False}
    if workload.model == "gpt2":
        sizes |= {"n_embd": WIDTH, "n_layer": workload.layers, "n_head": 2, "n_positions": LENGTH}
        sizes |= {"bos_token_id": 0, "eos_token_id": 0}
    else:
        sizes |= {"hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": workload.layers}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 2, "pad_token_id": None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(workload.model, **sizes), attn_implementation="sdpa")
    model.train()
    if workload.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": workload.checkpointing == "reentrant"})
    ids = torch.ones(1, LENGTH, dtype=torch.int64)
    return model, lambda called: called(input_ids=ids, labels=ids).loss


@contextmanager
def step_of(workload: Workload) -> Iterator[Step]:
    """Its optimizer step."""
    import deepspeed
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    model, loss = _model(workload)
    linear = nn.functional.linear
    if workload.by == "accelerate":
        yield _by_accelerate(workload, model, loss)
        unset_hf_deepspeed_config()
        nn.functional.linear = linear
        return
    parameters = list(model.parameters())
    client = torch.optim.AdamW(parameters) if workload.optimizer == "torch" else None
    given: dict[str, Any] = {"optimizer": client} if client else {"model_parameters": parameters}
    engine, *_ = deepspeed.initialize(model=model, config=workload.ds_config, **given)

    def step() -> None:
        for _ in range(workload.accumulation):
            engine.backward(loss(engine))
            engine.step()

    yield step
    engine.destroy()
    # Stage 3 replaces it for good.
    nn.functional.linear = linear


def _by_accelerate(workload: Workload, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> Step:
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.state import AcceleratorState
    from accelerate.utils import DummyOptim
    from torch.utils.data import DataLoader

    AcceleratorState._reset_state(True)
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(workload.ds_config))
    prepared, optimizer, _ = accelerator.prepare(model, DummyOptim(model.parameters()), DataLoader([0], batch_size=1))

    def step() -> None:
        for _ in range(workload.accumulation):
            with accelerator.accumulate(prepared):
                accelerator.backward(loss(prepared))
                accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return step


def prepare_process() -> None:
    """Make this process one rank of four on the CPU, with nothing compiled."""
    warnings.simplefilter("ignore")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.ops import op_builder

    logging.disable(logging.WARNING)
    # A CPU's count of devices starts a program.
    get_accelerator().device_count = lambda: RANKS
    get_accelerator().is_fp16_supported = lambda: True

    def nothing(*_: Any) -> None:
        pass

    names = ("multi_tensor_adam", "create_adam", "destroy_adam", "adam_update", "adam_rollback")
    compiled = SimpleNamespace(**dict.fromkeys(names, nothing))
    for builder in (op_builder.FusedAdamBuilder, op_builder.CPUAdamBuilder):
        builder.load = lambda *_, **__: compiled
    deepspeed.init_distributed("fake", dist_init_required=None)
