"""Weights in 4 bits, as bitsandbytes packs them for QLoRA."""

from __future__ import annotations

from typing import Any

import pytest

from tests.memory.runs import LLAMA, run, shape
from zerokit.errors import ZerokitError
from zerokit.memory import Estimate, Ia3, Lora, TrainingRun, estimate
from zerokit.memory.bnb_4bit import constant_bytes, packed_bytes
from zerokit.memory.gpu import replay_fullest
from zerokit.memory.layout import layout_of
from zerokit.memory.settings import settings_of
from zerokit.models import load_model_shape

LAYERS, HIDDEN, INNER, KEYS, WORDS = 4, 512, 1376, 256, 32000
LINEAR = [HIDDEN * HIDDEN] * 2 + [HIDDEN * KEYS] * 2 + [HIDDEN * INNER] * 3
"""Elements of each weight of a layer that is packed; embeddings, norms and the output matrix are not."""


def estimate_of(stage: int, **more: Any) -> Estimate:
    assert LLAMA["tie_word_embeddings"] is False
    return estimate(run(stage, lora=Lora(8), **more))


@pytest.mark.parametrize(
    ("double_quant", "constants"), [(False, 4 * 64), (True, 64 + 4 * 1 + 4 * 256)], ids=["fp32", "bytes"]
)
def test_a_weight_is_half_a_byte_for_each_and_a_constant_for_64(double_quant: bool, constants: int) -> None:
    assert packed_bytes(64 * 64, double_quant=double_quant) == 64 * 64 // 2 + constants + 64


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_only_linear_layers_are_packed_and_stage_3_divides_all_but_their_constants(stage: int) -> None:
    zero = {"stage3_param_persistence_threshold": 0}
    plain, packed = estimate_of(stage, zero=zero), estimate_of(stage, load_in_4bit=True, zero=zero)
    held = {term.name: term.bytes for term in packed.terms_of("gpu", "always")}
    of_linear = LAYERS * sum(packed_bytes(size, double_quant=False) for size in LINEAR)
    constants = LAYERS * sum(constant_bytes(size, double_quant=False) for size in LINEAR)
    world = 1
    if stage < 3:
        assert held["weights in 4 bits, with their constants"] == of_linear
    else:
        world = 4
        assert held["constants of weights in 4 bits"] == constants
        of_linear = constants + (of_linear - constants) // world
    saved = 2 * LAYERS * sum(LINEAR) // world - of_linear
    assert plain.device.steady_bytes - packed.device.steady_bytes == pytest.approx(saved, abs=2**20)
    states = packed.model_states.parameters
    adapters = packed.num_trainable_parameters
    rest = 2 * WORDS * HIDDEN + (2 * LAYERS + 1) * HIDDEN + adapters
    assert (states.elements, states.packed_bytes) == (rest, of_linear)
    assert any("4 bits" in warning for warning in packed.warnings) is (stage == 3)
    assert packed.num_parameters == plain.num_parameters


def test_dora_makes_weights_anew_beside_what_it_unpacks() -> None:
    targets = ("q_proj", "down_proj")
    dora = Lora(8, targets, dora=True)
    plain, packed = (_made(run(2, lora=dora, load_in_4bit=packs)) for packs in (False, True))
    assert plain.keys() == packed.keys()
    unpacked = {name: packed[name] - made for name, made in plain.items()}
    sizes = {"q_proj": HIDDEN * HIDDEN, "down_proj": HIDDEN * INNER}
    assert unpacked == {name: next(size for target, size in sizes.items() if name.endswith(target)) for name in plain}
    assert len(plain) == len(targets) * LAYERS


def _made(training: TrainingRun) -> dict[str, int]:
    """What DoRA makes in each module, in elements."""
    calls = replay_fullest(training, layout_of(training), settings_of(training)).model_calls
    assert calls is not None
    return {call.module: call.made for block in calls.blocks for call in block.calls if call.made}


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        ({}, "only LoRA adapters are supported"),
        ({"ia3": Ia3()}, "only LoRA adapters are supported"),
        ({"lora": Lora(8, dora=True, dropout=True)}, "DoRA with dropout"),
    ],
    ids=str,
)
def test_what_is_not_counted_beside_weights_in_4_bits_is_refused(adapter: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError, match=message):
        run(2, load_in_4bit=True, **adapter)


def test_a_weight_is_unpacked_beside_the_gradients_of_a_layer_s_input() -> None:
    """LoRA's, which waits, and the layer's own; what LoRA has saved of the input is free by then."""
    tokens, element, inner = 256, 2, 8192
    model = shape(num_hidden_layers=1, vocab_size=64, intermediate_size=inner)
    one: dict[str, Any] = {"model": model, "world_size": 1, "seq_len": tokens}
    zero = {"reduce_bucket_size": 1000}
    adapted, alone = (
        estimate(run(2, lora=Lora(8, ("down_proj",)), load_in_4bit=packs, zero=zero, **one)).device
        for packs in (True, False)
    )
    saved = adapted.by_phase["backward"] - adapted.by_phase["always"]
    plain = alone.by_phase["backward"] - alone.by_phase["always"]
    unpacked = element * HIDDEN * inner
    # Without 4 bits the activation's gradients are the most: three of the inner width.
    assert saved - plain == unpacked + element * tokens * (2 * inner + HIDDEN) - 3 * element * tokens * inner


def test_layers_of_a_class_of_their_own_are_not_packed() -> None:
    falcon = load_model_shape("tiiuae/falcon-7b")
    packed = estimate(run(2, model=falcon, lora=Lora(8), load_in_4bit=True))
    assert packed.model_states.parameters.packed_bytes == 0
    assert any("packs no linear layer" in warning for warning in packed.warnings)


def test_weights_pass_the_host_one_by_one_on_their_way_to_be_packed() -> None:
    assert estimate_of(2, load_in_4bit=True).host.peak_bytes == 2 * WORDS * HIDDEN
    assert estimate_of(2).host.peak_bytes > 2 * LAYERS * sum(LINEAR)
