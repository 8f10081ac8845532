"""Compare predicted speed of generation with published figures.

    python -m tests.validation.generation.published

Sources: DeepSpeed's post on ZeRO-Inference (docs/_posts/2022-09-10-zero-inference.md): OPT-30B on one V100-32GB with
weights in host memory, prompts of 4 tokens and 10 new ones, 43 tokens/s; the batch is not in its text. TRL gathers the
weights of a ZeRO-3 engine once, which made its PPO example about 10 times faster (huggingface/trl, pull request 1483).
"""

from __future__ import annotations

import json
from typing import Any

from tests.tiny import REPOSITORY
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.costs.card_costs import CardCosts
from zerokit.hardware.gpus import find_gpu
from zerokit.memory.generation import GenerationMode, GenerationRun
from zerokit.models import load_model_shape
from zerokit.step_time.generation import generation_time, judge_modes

RECORD = REPOSITORY / "tests" / "validation" / "results" / "generation_published.json"


def offloaded() -> dict[str, Any]:
    """OPT-30B on a V100 with 32 GB."""
    cluster = Cluster(1, 8, find_gpu("v100-32gb"))
    costs, published = CardCosts(cluster), 43
    run = GenerationRun(
        model=load_model_shape("facebook/opt-30b"),
        cluster=cluster,
        mode="offloaded",
        prompt_tokens=4,
        new_tokens=10,
        batch_size=1,
        precision="fp16",
    )
    (judged,) = judge_modes(run, cluster.gpu_memory_bytes, costs=costs, modes=["offloaded"], most_sequences=10**6)
    seconds = generation_time(run, costs).pass_seconds
    assert judged.time is not None
    return {
        "published_tokens_per_second": published,
        "predicted_seconds_of_a_pass": round(seconds, 3),
        "batch_that_gives_the_published_speed": round(published * seconds),
        "largest_batch_by_memory": judged.largest_batch,
        "predicted_tokens_per_second_with_it": round(judged.time.tokens_per_second, 1),
    }


def gathered_to_sharded() -> dict[str, Any]:
    """An 8B model on eight A100s."""
    cluster = Cluster(8, 8, find_gpu("a100-80gb"))

    def rate(mode: GenerationMode, batch: int) -> float:
        model = load_model_shape("llama-3.1-8b")
        sizes: dict[str, Any] = {"prompt_tokens": 512, "new_tokens": 512, "batch_size": batch}
        run = GenerationRun(model=model, cluster=cluster, mode=mode, **sizes)
        return generation_time(run, CardCosts(cluster)).tokens_per_second

    ratios = {batch: round(rate("gathered", batch) / rate("sharded", batch), 2) for batch in (1, 16, 64)}
    return {"published_ratio": 10, "predicted_ratio_by_batch": ratios}


if __name__ == "__main__":
    record = {"opt_30b_offloaded": offloaded(), "8b_gathered_to_sharded": gathered_to_sharded()}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
