from typing import Any

import pytest

from tests.lint.asking import zero
from zerokit.config import load_ds_config
from zerokit.lint import Subject
from zerokit.lint.examples import llama_8b, recipe
from zerokit.lint.rules.host_memory import host_bytes_of_a_rank
from zerokit.resolving.run import Run

CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/nvme"}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "bf16": {"enabled": True}}


def bytes_of(config: dict[str, Any], **run: Any) -> tuple[int, int]:
    """Pinned and pageable bytes for each parameter of a rank's share, on 8 GPUs."""
    model = llama_8b()
    subject = Subject(config=load_ds_config(config), written=config, run=Run.of(model=model, num_gpus=8, **run))
    counted = host_bytes_of_a_rank(subject)
    assert counted is not None
    share = -(-model.num_parameters // 8)
    return round(counted.pinned / share), round(counted.pageable / share)


@pytest.mark.parametrize(
    ("zero_optimization", "expected"),
    [
        (zero(2, offload_optimizer=CPU), (10, 8)),
        (zero(2, offload_optimizer={**CPU, "pin_memory": False}), (0, 18)),
        (zero(3, offload_optimizer=CPU), (6, 12)),
        (zero(3, offload_optimizer=CPU, offload_param=CPU), (8, 12)),
        (zero(3, offload_param={**CPU, "pin_memory": False}), (2, 0)),
        (zero(3, offload_optimizer={**CPU, "ratio": 0.5}), (3, 6)),
        (zero(2, offload_param=CPU), (0, 0)),
    ],
)
def test_bytes_per_parameter(zero_optimization: dict[str, Any], expected: tuple[int, int]) -> None:
    assert bytes_of({**zero_optimization, **ADAMW}) == expected


def test_buffers_for_nvme_are_pinned_for_each_rank() -> None:
    model = llama_8b()
    run = Run.of(target="trainer", model=model, num_gpus=8)
    config = zero(3, offload_param={**NVME, "buffer_size": 1e8, "buffer_count": 12, "max_in_cpu": 0})
    subject = Subject(config=load_ds_config(config), written=config, run=run)
    counted = host_bytes_of_a_rank(subject)
    assert counted is not None
    assert (counted.pinned, counted.pageable) == (12 * 100_000_000 * 2, 0)
    config = zero(3, offload_optimizer=NVME, sub_group_size=1e8)
    counted = host_bytes_of_a_rank(Subject(config=load_ds_config(config), written=config, run=run))
    assert counted is not None
    assert counted.pinned == 4 * 4 * 100_000_000 + 2 * -(-model.num_parameters // 8)


def test_states_are_counted_of_known_optimizers_only() -> None:
    config = {**zero(2, offload_optimizer=CPU), "bf16": {"enabled": True}}
    assert bytes_of(config) == (10, 0)
    assert bytes_of(config, target="trainer", recipe=recipe()) == (10, 8)
    assert bytes_of(config, target="trainer", recipe=recipe(training={"optim": "adafactor"})) == (10, 0)
