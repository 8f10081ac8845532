"""Trains a causal language model as a published figure of throughput was measured.

``published_model.py PLAN.json``, whatever a launcher puts before it: an object with the keys of
`tests.validation.rehearsal.published_runs.Plan`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts, set_checkpoint_early_stop
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

Plan = dict[str, Any]
Step = Callable[[Sequence[torch.Tensor]], None]
"""One optimizer step: a micro-batch for each input."""

_CLASSES = {"causal": AutoModelForCausalLM, "classes": AutoModelForSequenceClassification, "value": AutoModel}
"""What makes the model, by the plan's task."""
_KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


class Valued(nn.Module):
    """A reward model: a number for each token, of which the loss is the mean."""

    def __init__(self, body: Any, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, 1, bias=False, dtype=dtype)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.head(self.body(input_ids=input_ids).last_hidden_state)
        return values.float().mean()


def model_of(plan: Plan, dtype: torch.dtype) -> nn.Module:
    """The model, on the GPU, with its adapters and what is computed again in backward."""
    kinds = dict(plan["model"])
    config = AutoConfig.for_model(kinds.pop("model_type"), **kinds)
    attention = "eager" if plan["attention"] == "eager" else "sdpa"
    in_dtype = {"dtype" if Version(transformers.__version__) >= Version("4.56") else "torch_dtype": dtype}
    with torch.device("cuda"):
        model = _CLASSES[plan["task"]].from_config(config, **in_dtype, attn_implementation=attention)
    model.config.use_cache = False
    model.train()
    if plan["checkpointing"] in ("full", "whole") and plan["engine"] != "fsdp":
        # One that goes to a layer's end without being reentrant would leave ZeRO-3's parameters released.
        model.gradient_checkpointing_enable({"use_reentrant": plan["checkpointing"] == "whole"})
    if plan["checkpointing"] == "host":
        in_host_memory(model)
    if plan["lora_rank"]:
        model = with_adapters(model, plan["lora_rank"])
    if plan["task"] == "value":
        with torch.device("cuda"):
            model = Valued(model, config.word_embed_proj_dim, dtype)
    return model


def in_host_memory(model: Any) -> None:
    """DeepSpeed's own checkpointing: inputs of layers in the host's memory, the device waited for at each."""
    from deepspeed.runtime.activation_checkpointing import checkpointing

    def checkpoint(layer: Callable[..., Any], *args: Any) -> Any:
        """Of tensors alone, as DeepSpeed cuts them."""
        others = [None if torch.is_tensor(arg) else arg for arg in args]
        places = [place for place, arg in enumerate(args) if torch.is_tensor(arg)]

        def called(*tensors: torch.Tensor) -> Any:
            given = list(others)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            return layer(*given)

        return checkpointing.checkpoint(called, *(args[place] for place in places))

    # The inputs are copied while the host waits where they are to be cut among ranks, of which there is one.
    checkpointing.configure(None, partition_activations=True, checkpoint_in_cpu=True, synchronize=True)
    model._set_gradient_checkpointing(gradient_checkpointing_func=checkpoint)


def wait_around_gathers() -> None:
    """As DeepSpeed 0.3.16 does, in `_allgather_param` and `_synchronize_communication`."""
    from deepspeed.runtime.zero import partition_parameters

    gather = partition_parameters._dist_allgather_fn

    def waited(*args: Any, **given: Any) -> Any:
        torch.cuda.synchronize()
        return gather(*args, **given)

    partition_parameters._dist_allgather_fn = waited
    for handle in (partition_parameters.AllGatherHandle, partition_parameters.AllGatherCoalescedHandle):
        handle.wait = followed_by_the_device(handle.wait)


def followed_by_the_device(wait: Callable[..., None]) -> Callable[..., None]:
    """A module's parameters are waited for by the host, and with them all that the device has to do."""

    def waited(*args: Any, **given: Any) -> None:
        wait(*args, **given)
        torch.cuda.synchronize()

    return waited


def with_adapters(model: Any, rank: int) -> nn.Module:
    """LoRA on all linear layers, in the model's dtype."""
    import peft

    model.enable_input_require_grads()
    lora = peft.LoraConfig(r=rank, lora_dropout=0.05, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, lora, autocast_adapter_dtype=False)


def blocks(model: nn.Module) -> nn.ModuleList:
    """The model's layers: its longest list of modules."""
    return max((one for one in model.modules() if isinstance(one, nn.ModuleList)), key=len)


def products_are_kept() -> Any:
    """Every second matrix product and all attention, as torchtitan's selective checkpointing by operators."""
    products = Counter[bool]()
    attention = (
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
    )

    def policy(context: Any, operator: Any, *arguments: Any, **given: Any) -> CheckpointPolicy:
        if operator is torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        else:
            kept = operator in attention
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def by_deepspeed(plan: Plan) -> Step:
    """DeepSpeed's engine."""
    import deepspeed

    deepspeed.init_distributed()
    if plan["waits_to_gather"]:
        wait_around_gathers()
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    dtype = next((dtype for name, dtype in dtypes.items() if name in plan["ds_config"]), torch.float32)
    model = model_of(plan, dtype)
    trained = [one for one in model.parameters() if one.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, config=plan["ds_config"])

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        if plan["task"] == "value":
            return engine(input_ids=batch)
        labels = batch if plan["task"] == "causal" else torch.zeros(len(batch), dtype=torch.long, device="cuda")
        return engine(input_ids=batch, labels=labels).loss

    def step(batches: Sequence[torch.Tensor]) -> None:
        engine.set_train_batch_size(len(batches) * plan["micro_batch"] * engine.dp_world_size)
        for batch in batches:
            engine.backward(loss_of(batch))
            engine.step()

    return step


def by_fsdp(plan: Plan) -> Step:
    """FSDP 2, a group for each layer and one for the rest; master weights in fp32."""
    torch.distributed.init_process_group("nccl")
    model = model_of(plan, torch.float32)
    layers = blocks(model)
    if plan["checkpointing"] != "none":
        kept = {"context_fn": products_are_kept} if plan["checkpointing"] == "products" else {}
        for at, layer in enumerate(layers):
            layers[at] = checkpoint_wrapper(layer, **kept)
    if plan["compiled"]:
        for layer in layers:
            layer.compile()
    policy = MixedPrecisionPolicy(torch.bfloat16, getattr(torch, plan["reduced_in"]))
    shard = partial(fully_shard, mp_policy=policy, reshard_after_forward=plan["stage"] == 3)
    for layer in layers:
        shard(layer)
    shard(model)
    return by_optimizer(model)


def by_torch(plan: Plan) -> Step:
    """One GPU, and weights, gradients and moments in bf16."""
    return by_optimizer(model_of(plan, torch.bfloat16))


def by_optimizer(model: nn.Module) -> Step:
    """torch's AdamW."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], foreach=True)

    def step(batches: Sequence[torch.Tensor]) -> None:
        for batch in batches:
            model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    plan: Plan = json.loads(Path(sys.argv[-1]).read_text(encoding="utf-8"))
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    step = {"deepspeed": by_deepspeed, "fsdp": by_fsdp, "torch": by_torch}[plan["engine"]](plan)
    size = (plan["micro_batch"], plan["length"])
    kernel = _KERNELS.get(plan["attention"])
    chosen: AbstractContextManager[None] = nullcontext() if kernel is None else sdpa_kernel(kernel)
    with chosen, set_checkpoint_early_stop(plan["checkpointing"] != "whole"):
        for accumulated in plan["accumulated"]:
            step([torch.randint(1000, size, device="cuda") for _ in range(accumulated)])


if __name__ == "__main__":
    main()
