"""Training with generation between its steps and micro batches, against training without: bit for bit.

``python -m tests.validation.generation.in_training [CASE ...]`` starts two CPU ranks, prints what differs in each
case, and writes ``tests/validation/results/generation_in_training.json`` if no case is named.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.tiny import REPOSITORY, launch, tiny_llama, tiny_tokenizer

CASES: dict[str, dict[str, Any]] = {
    "0": {"stage": 0},
    "1": {"stage": 1},
    "2": {"stage": 2},
    "3": {"stage": 3},
    "3, prefetching and persistent parameters": {
        "stage": 3,
        "stage3_param_persistence_threshold": 100,
        "stage3_prefetch_bucket_size": 10_000,
    },
    "3, parameters on the CPU": {"stage": 3, "offload_param": {"device": "cpu"}},
    "3, sharded": {"stage": 3, "mode": "sharded"},
    "0, LoRA": {"stage": 0, "lora": True},
    "2, LoRA": {"stage": 2, "lora": True},
    "3, LoRA": {"stage": 3, "lora": True},
}
STEPS, MICRO_BATCHES, EVERY = 8, 2, 2
PROMPTS = ["The for statement", "What does the import statement do? It finds", "A class"]
RESULT = REPOSITORY / "tests/validation/results/generation_in_training.json"


def train(folder: Path, case: dict[str, Any], *, generates: bool) -> dict[str, Any]:
    """Train a case; with generation, also what it has changed beside the results."""
    import deepspeed
    import numpy
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import zerokit

    zero = {key: value for key, value in case.items() if key not in ("lora", "mode")}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, attention_dropout=0.1)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    if case.get("lora"):
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(3)
        model = get_peft_model(model, LoraConfig(target_modules="all-linear", lora_dropout=0.1))
        model.enable_input_require_grads()
    trained = [each for each in model.parameters() if each.requires_grad]
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trained, optimizer=torch.optim.AdamW(trained, 1e-3), config=config
    )
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(5 + engine.global_rank)
    losses, texts, changed = [], [], []
    engine.train()
    for number in range(STEPS * MICRO_BATCHES):
        length = 12 + random.randrange(4) + numpy.random.randint(4)
        ids = torch.randint(2, 320, (2, length))
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(float(loss).hex())
        if generates and number % (EVERY * MICRO_BATCHES + 1) == 2:
            before = state(engine)
            options = {"do_sample": True, "max_new_tokens": 12, "mode": case.get("mode", "gathered")}
            texts.append([each.text for each in zerokit.generate(engine, PROMPTS, tokenizer=tokenizer, **options)])
            changed += [name for name, value in state(engine).items() if value != before[name]]
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=case["stage"] == 3):
        digest = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    found = {"losses": losses, "weights": digest, "order": order(engine)}
    engine.destroy()
    return {**found, "texts": texts, "changed": sorted(set(changed))} if generates else found


def order(engine: Any) -> list[str]:
    """Modules in the order that ZeRO-3 prefetches by."""
    offload = getattr(engine.optimizer, "parameter_offload", None)
    if offload is None:
        return []
    coordinator = offload.get_param_coordinator()
    names = {module: name for name, module in engine.module.named_modules()}
    return [names[each] for each in coordinator._PartitionedParameterCoordinator__submodule_order]


def state(engine: Any) -> dict[str, Any]:
    """What generation must leave as it is."""
    import numpy
    import torch

    parameters, modules = list(engine.module.parameters()), list(engine.module.modules())
    part = [getattr(each, "ds_tensor", each) for each in parameters]
    return {
        "storages": [each.data_ptr() for each in part],
        "values": [float(each.double().sum()) for each in part],
        "shapes": [each.shape for each in parameters],
        "status": [str(getattr(each, "ds_status", "")) for each in parameters],
        "gradients": [
            None if each.grad is None else (each.grad.data_ptr(), float(each.grad.sum())) for each in parameters
        ],
        "requires_grad": [each.requires_grad for each in parameters],
        "modes": [each.training for each in modules],
        "hooks": [[list(each._forward_pre_hooks.items()), list(each._forward_hooks.items())] for each in modules],
        "settings": [id(getattr(each, "generation_config", None)) for each in modules],
        "order": order(engine),
        "random": [random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()],
    }


def compare(folder: Path, names: list[str]) -> dict[str, Any]:
    """What generation changes in each case, on this rank; empty for nothing."""
    found = {}
    for name in names:
        without, with_ = (train(folder, CASES[name], generates=generates) for generates in (False, True))
        differing = [key for key in without if without[key] != with_[key]]
        found[name] = {
            "differs": differing + with_["changed"],
            "texts": with_["texts"],
            "last_loss": with_["losses"][-1],
        }
    return found


def main(names: list[str]) -> dict[str, dict[str, Any]]:
    """Compare cases on two ranks; returns for each case what rank 0 and 1 have found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(folder)
        tiny_llama(folder)
        result = launch([__file__, folder, *names], ranks=2, launcher="none")
        if result.returncode:
            raise SystemExit(f"{result.stdout}\n{result.stderr}"[-6000:])
        ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {
        name: {
            "differs": ranks[0][name]["differs"] + ranks[1][name]["differs"],
            "same_texts": ranks[0][name]["texts"] == ranks[1][name]["texts"],
            "texts": ranks[0][name]["texts"],
            "last_loss": float.fromhex(ranks[0][name]["last_loss"]),
        }
        for name in names
    }


if __name__ == "__main__":
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        import os

        found = compare(Path(sys.argv[1]), sys.argv[2:])
        (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))
    else:
        table = main(sys.argv[1:] or list(CASES))
        for case, row in table.items():
            print(f"{case}: {', '.join(row['differs']) or 'the same'}")
        if not sys.argv[1:]:
            record = {
                name: {"differs": row["differs"], "same_texts": row["same_texts"], "last_loss": row["last_loss"]}
                for name, row in table.items()
            }
            RESULT.write_text(json.dumps({"steps": STEPS, "cases": record}, indent=2) + "\n")
