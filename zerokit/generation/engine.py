"""Loads the model and generates, on all ranks together. Prompts are distributed in rounds.

Under ZeRO-3 every forward pass gathers parameters from all ranks, so each rank must call ``generate`` equally
often. A rank without prompts left gets an empty batch, for which the engine runs a placeholder prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from zerokit.checkpoint.pretrained import load_weights
from zerokit.distributed.group import device_precision
from zerokit.generation.ds_config import Device, Engine

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerBase

    from zerokit.distributed.ranks import Ranks
    from zerokit.generation.model import ModelFiles


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
        self.synced = plan.zero_stage == 3 and ranks.world_size > 1
        # transformers keeps only a weak reference to the first of these, and asks it whether it runs under
        # ZeRO-3; the hooks that gather parameters live as long as the engine.
        self._hf_config: Any = None
        self._engine: Any = None
        if plan.zero_stage == 3:
            self.model = self._load_divided(files, plan, trust_remote_code)
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
        self._engine, *_ = deepspeed.initialize(model=model, config=plan.ds_config)
        return self._engine.module

    def generate(self, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[list[list[int]]]:
        """``num_return_sequences`` padded token lists per prompt. Under ZeRO-3 every rank must call it."""
        if not prompts:
            if self.synced:
                self._run_placeholder(config)
            return []
        pad = config.pad_token_id
        ids, mask = left_pad(prompts, pad)
        sequences = self._generate(ids, mask, config)
        made = sequences[:, ids.shape[1] :].tolist()
        per_prompt = config.num_return_sequences or 1
        return [made[start : start + per_prompt] for start in range(0, len(made), per_prompt)]

    def _run_placeholder(self, config: GenerationConfig) -> None:
        """Take part in the forward passes of other ranks, with one token that is finished at once."""
        import torch

        token = torch.zeros(1, 1, dtype=torch.long)
        # The stopping criterion ends it, not a smaller max_new_tokens: a cache of fixed size is made for
        # max_new_tokens, and the placeholder continues as long as any rank.
        self._generate(token, torch.ones_like(token), config, stopping_criteria=_stop_at_once())

    def _generate(
        self, ids: torch.Tensor, mask: torch.Tensor, config: GenerationConfig, **options: Any
    ) -> torch.Tensor:
        sequences: torch.Tensor = self.model.generate(
            input_ids=ids.to(self.device),
            attention_mask=mask.to(self.device),
            generation_config=config,
            tokenizer=self.tokenizer,  # for stop strings
            synced_gpus=self.synced,
            **options,
        )
        return sequences


def _load_weights(files: ModelFiles, plan: Engine, trust_remote_code: bool) -> Any:
    import torch

    return load_weights(
        files.folder,
        files.config,
        dtype=getattr(torch, plan.dtype),
        where="--model",
        trust_remote_code=trust_remote_code,
    )


def _stop_at_once() -> Any:
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    class StopAtOnce(StoppingCriteria):  # type: ignore[misc]  # transformers is not followed
        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            return torch.ones(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)

    return StoppingCriteriaList([StopAtOnce()])


Batch = tuple[int, ...]
"""Indices of prompts that are generated together; empty for a rank without prompts left."""


def distribute(lengths: Sequence[int], *, batch_size: int, world_size: int) -> list[list[Batch]]:
    """Distribute prompts into rounds of one batch per rank.

    Longest first, so that the first round runs out of memory if any does. Prompts of similar length share a
    batch and a round. Batch sizes differ by at most one: five prompts on two ranks are 3 + 2.

    Returns:
        ``rounds[r][rank]``: each index of `lengths` exactly once.
    """
    if not lengths:
        return []
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    num_rounds = -(-len(order) // (batch_size * world_size))
    num_batches = num_rounds * world_size
    small, larger_ones = divmod(len(order), num_batches)
    rounds: list[list[Batch]] = []
    start = 0
    for number in range(num_batches):
        end = start + small + (number < larger_ones)
        if number % world_size == 0:
            rounds.append([])
        rounds[-1].append(tuple(order[start:end]))
        start = end
    return rounds


def left_pad(sequences: Sequence[Sequence[int]], pad_token_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask (0 for padding), padded on the left: int64, [sequences, longest]."""
    import torch

    longest = max(len(sequence) for sequence in sequences)
    gaps = [longest - len(sequence) for sequence in sequences]
    ids = [[pad_token_id] * gap + list(sequence) for gap, sequence in zip(gaps, sequences, strict=True)]
    mask = [[0] * gap + [1] * (longest - gap) for gap in gaps]
    return torch.tensor(ids, dtype=torch.long), torch.tensor(mask, dtype=torch.long)
