"""Measures one forward and backward pass of models on a virtual GPU; prints what it found as JSON.

The only argument is a file with a list of cases: ``config``, ``attention``, ``checkpointing``, ``precision``,
``batch``, ``seq``. A real GPU's kernels are what is compared with, and the virtual device takes those.
"""

from __future__ import annotations

import gc
import json
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerokit.hardware.gpus import find_gpu
from zerokit.rehearsal.devices import virtual_device
from zerokit.rehearsal.process_setup import virtual_cluster


def measure(case: dict[str, Any]) -> dict[str, int]:
    """Bytes beyond what was held before: parameters, what the second layer saves, peaks, and the end."""
    import torch

    gc.collect()
    before = torch.cuda.memory_allocated()
    model = _model_of(case)
    parameters = torch.cuda.memory_allocated() - before
    if case["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    shape = (case["batch"], case["seq"])
    ids = torch.zeros(shape, dtype=torch.long, device="cuda")
    inputs = {"input_ids": ids, "labels": ids}
    torch.cuda.reset_peak_memory_stats()
    saved: dict[int, int] = {}
    loss = _forward(model, inputs, saved)
    loss.backward()
    return {
        "parameters": parameters,
        "saved_by_second_layer": sum(saved.values()),
        "peak": torch.cuda.max_memory_allocated() - before,
        "end": torch.cuda.memory_allocated() - before,
    }


def _model_of(case: dict[str, Any]) -> Any:
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys = {key: value for key, value in case["config"].items() if key not in ("dtype", "torch_dtype")}
    config = CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    for part in (config, getattr(config, "text_config", config)):
        part.use_cache = False
    with torch.device("cuda"):
        model: Any = getattr(transformers, case["architecture"])._from_config(
            config,
            dtype=torch.bfloat16 if case["precision"] == "bf16" else torch.float32,
            attn_implementation=case["attention"],
        )
    return model.train()


def _forward(model: Any, inputs: dict[str, Any], saved: dict[int, int]) -> Any:
    """The loss; what autograd saves within the second layer of a stack goes to `saved`, by its address."""
    import torch

    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen: set[int] = set()
    within: list[Any] = []
    stacks = [stack for stack in model.modules() if isinstance(stack, torch.nn.ModuleList) and len(stack) > 1]
    for layer in [stacks[0][1]] if stacks else []:
        layer.register_forward_pre_hook(lambda module, _: within.append(module))
        layer.register_forward_hook(lambda module, _, output: within.clear())

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known | seen:
            seen.add(storage.data_ptr())
            if within:
                saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return model(**inputs).loss


def main() -> None:
    warnings.simplefilter("ignore")
    cases = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    device = replace(virtual_device(find_gpu("H100-SXM")), total_bytes=2000 * 2**30)
    with virtual_cluster(1, device=device):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        one = torch.ones(8, 8, device="cuda", requires_grad=True)
        (one @ one).sum().backward()  # cuBLAS workspaces
        gc.freeze()  # what is imported by now is not looked through for every case
        print(json.dumps([measure(case) for case in cases]))


if __name__ == "__main__":
    main()
