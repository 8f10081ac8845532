"""Loads the model, on all ranks together, for a decoder.

Under ZeRO-3 every forward pass gathers parameters from all ranks, so all ranks make each pass together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zerokit.distributed.group import device_precision
from zerokit.distributed.leaf_modules import set_leaf_modules
from zerokit.distributed.ranks import Ranks
from zerokit.generation.ds_config import Device, Engine
from zerokit.generation.model import ModelFiles, load_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from zerokit.generation.decoding import Decoding
    from zerokit.generation.requests import Decoded, Queue


def find_device() -> Device:
    """The device that DeepSpeed will use."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    is_gpu = accelerator.device_name() != "cpu"
    return Device(
        is_gpu=is_gpu,
        # DeepSpeed counts GPUs that only emulate bf16; training does not.
        supports_bfloat16=device_precision() == "bf16" if is_gpu else accelerator.is_bf16_supported(),
        supports_float16=accelerator.is_fp16_supported(),
    )


class Generator:
    """A loaded model. Loading is collective under ZeRO-3; missing weights raise ModelError on every rank."""

    def __init__(self, files: ModelFiles, plan: Engine, ranks: Ranks, *, trust_remote_code: bool) -> None:
        import torch
        from deepspeed.accelerator import get_accelerator
        from transformers import GenerationConfig

        get_accelerator().set_device(ranks.local_rank)
        self.device = torch.device(get_accelerator().current_device_name())
        self.tokenizer: PreTrainedTokenizerBase = files.tokenizer
        self.synced = plan.is_synced and ranks.world_size > 1
        # transformers keeps only a weak reference to the first of these, and asks it whether it runs under
        # ZeRO-3; the hooks that gather parameters live as long as the engine.
        self._hf_config: Any = None
        self._engine: Any = None
        if plan.zero_stage == 3:
            self.model = self._load_divided(files, plan, trust_remote_code)
        elif plan.mode == "tensor":
            self.model = self._load_tensor_parallel(files, plan, ranks.world_size, trust_remote_code)
        else:
            self.model = _load_weights(files, plan, trust_remote_code).to(self.device)
        self.model.eval()
        # `generate` takes from here whatever the config it is given leaves open, as if it had been asked for.
        self.model.generation_config = GenerationConfig()

    def _load_divided(self, files: ModelFiles, plan: Engine, trust_remote_code: bool) -> Any:
        import deepspeed
        from transformers.integrations import HfDeepSpeedConfig

        deepspeed.init_distributed()
        # Before from_pretrained: that is what makes it divide each parameter as soon as it is made.
        self._hf_config = HfDeepSpeedConfig(plan.ds_config)
        model = _load_weights(files, plan, trust_remote_code)
        set_leaf_modules(model)
        self._engine, *_ = deepspeed.initialize(model=model, config=plan.ds_config)
        if plan.mode == "gathered":
            from zerokit.generation.gathered import gathered

            self._whole = gathered(self._engine, mode="gathered")
            return self._whole.__enter__()
        return self._engine.module

    def _load_tensor_parallel(self, files: ModelFiles, plan: Engine, size: int, trust_remote_code: bool) -> Any:
        """AutoTP divides the layers as the engine is made; until then each rank holds the model on the host."""
        import deepspeed

        deepspeed.init_distributed()
        # Loading exchanges nothing, and a rank that is done removes the shared memory that others must open.
        deepspeed.comm.barrier()
        model = _load_weights(files, plan, trust_remote_code)
        model = deepspeed.tp_model_init(model, tp_size=size, dtype=model.dtype)
        # All ranks choose the next token from all scores.
        section = {"tensor_parallel": {"autotp_size": size, "vocab_parallel_lm_head": False}}
        self._engine, *_ = deepspeed.initialize(model=model, config=plan.ds_config | section)
        # It compares the inputs of all ranks, and a tokenizer is never equal to its copy.
        self._engine.first_dataloader_check.remove()
        return self._engine.module

    def run(self, queue: Queue, done: Callable[[Decoded], None], decoding: Decoding) -> None:
        """Decode this rank's requests; `done` gets each one as soon as it is complete. Every rank must call it."""
        from zerokit.generation.decoding import Decoder

        Decoder(self.model, self.tokenizer, decoding, device=self.device, synced=self.synced).run(queue, done)


def _load_weights(files: ModelFiles, plan: Engine, trust_remote_code: bool) -> Any:
    import torch

    # AutoTP would divide an adapter's layers by the names of those that they are in.
    merges = plan.mode == "tensor"
    return load_model(files, getattr(torch, plan.dtype), trust_remote_code=trust_remote_code, merges=merges)
