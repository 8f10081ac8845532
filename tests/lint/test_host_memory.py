from typing import Any

import pytest

from tests.lint.asking import found, zero
from zerokit.config import load_ds_config
from zerokit.lint import Subject
from zerokit.lint.examples import llama_8b, recipe
from zerokit.lint.rules.host_memory import host_bytes_of_a_rank
from zerokit.resolving.run import Run
from zerokit.units import GIB

CPU = {"device": "cpu"}
NVME = {"device": "nvme", "nvme_path": "/nvme"}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}, "bf16": {"enabled": True}}


def bytes_of(config: dict[str, Any], **run: Any) -> tuple[int, int]:
    """Pinned and pageable bytes for each parameter of a rank's share, on 8 GPUs."""
    model = llama_8b()
    subject = Subject(
        config=load_ds_config(config), written=config, run=Run.of(model=model, num_gpus=8, **run)
    )
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


@pytest.mark.parametrize(
    ("num_gpus", "gpus_per_node", "memory", "count"),
    [(8, 8, 130, 1), (8, 8, 140, 0), (1, 8, 130, 1), (16, 8, 130, 0), (16, 8, 65, 1), (8, 4, 65, 1)],
)
def test_each_node_holds_its_ranks_shares(num_gpus: int, gpus_per_node: int, memory: int, count: int) -> None:
    config = {**zero(2, offload_optimizer=CPU), **ADAMW}
    run = {"model": llama_8b(), "num_gpus": num_gpus, "gpus_per_node": gpus_per_node}
    assert len(found("host-memory", config, **run, host_memory_bytes=memory * GIB)) == count


def test_adapters_are_not_reckoned_with() -> None:
    config = {**zero(2, offload_optimizer=CPU), **ADAMW}
    run = {"model": llama_8b(), "num_gpus": 8, "host_memory_bytes": GIB}
    assert [finding.severity for finding in found("host-memory", config, **run)] == ["warning"]
    certain = found("host-memory", config, **run, recipe=recipe())
    assert [finding.severity for finding in certain] == ["error"]
    assert found("host-memory", config, **run, recipe=recipe(peft={"type": "lora"})) == []


@pytest.mark.parametrize(("memory", "expected"), [(70, ["host-memory"]), (88, ["pinned-memory"]), (100, [])])
def test_too_much_page_locked_memory(memory: int, expected: list[str]) -> None:
    # 10 bytes of each parameter are pinned, 74.8 GiB in all; without an optimizer no states are counted.
    config = {**zero(2, offload_optimizer=CPU), "bf16": {"enabled": True}}
    run = {"model": llama_8b(), "num_gpus": 8, "host_memory_bytes": memory * GIB}
    assert [rule for rule in ("host-memory", "pinned-memory") if found(rule, config, **run)] == expected
