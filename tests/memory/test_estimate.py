from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import work
from tests.examples import examples
from tests.memory.runs import ds_config, run, shape
from tests.validation.memory.families import with_layers
from zerokit.errors import ConfigError, ZerokitError
from zerokit.hardware.cluster import Cluster
from zerokit.hardware.gpus import find_gpu
from zerokit.memory import Estimate, Generation, Lora, TrainingRun, estimate, model_states, total_bytes
from zerokit.models import catalogue, load_model_shape
from zerokit.reporting.phases import EARLY_PHASES, PHASES


def held(estimated: Estimate, phase: Any) -> int:
    own = estimated.terms_of("gpu", phase)
    always = () if phase in ("always", *EARLY_PHASES) else estimated.terms_of("gpu", "always")
    return total_bytes(own) + total_bytes(always)


@examples(40)
@given(
    stage=st.integers(0, 3),
    world_size=st.sampled_from([1, 2, 3, 64]),
    precision=st.sampled_from(["bf16", "fp16", "fp32"]),
    checkpointing=st.booleans(),
    accumulation=st.integers(1, 5),
    attention=st.sampled_from(["sdpa", "eager", "flash_attention_2"]),
    offload=st.sampled_from([None, "cpu"]),
)
def test_the_peak_is_the_largest_phase_and_its_terms_add_up(
    stage: int,
    world_size: int,
    precision: str,
    checkpointing: bool,
    accumulation: int,
    attention: Any,
    offload: str | None,
) -> None:
    zero = {"offload_optimizer": {"device": offload}} if offload and stage else None
    estimated = estimate(
        run(
            stage,
            world_size=world_size,
            precision=precision,
            zero=zero,
            gradient_checkpointing=checkpointing,
            gradient_accumulation_steps=accumulation,
            attention=attention,
        )
    )
    device = estimated.device
    assert device.peak_bytes == max(device.by_phase.values()) == total_bytes(device.terms_at_peak)
    assert device.steady_bytes == total_bytes(estimated.terms_of("gpu", "always")) <= device.peak_bytes
    assert all(device.by_phase[phase] == held(estimated, phase) for phase in device.by_phase)
    assert all(term.bytes > 0 and term.phase in PHASES for term in estimated.terms)
    assert device.peak_bytes < estimated.device_low_bytes < estimated.device_high_bytes
    assert estimated.host.pinned_bytes <= estimated.host.peak_bytes
    assert estimated.host.per_node_bytes == min(8, world_size) * estimated.host.peak_bytes


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_model_states_are_the_zero_papers(stage: int) -> None:
    estimated = estimate(run(stage, world_size=8))
    paper = model_states(shape().num_parameters, zero_stage=stage, num_gpus=8)
    assert estimated.model_states == paper
    assert estimated.num_parameters == estimated.num_trainable_parameters == shape().num_parameters


def test_stage_3_can_take_more_than_stage_2() -> None:
    # With few GPUs, a model below stage3_max_live_parameters is gathered whole on top of everything else.
    model = load_model_shape("meta-llama/Llama-3.2-1B")
    peaks = [estimate(run(stage, model=model, world_size=8)).device.peak_bytes for stage in (2, 3)]
    assert peaks[1] > peaks[0]
    gathered = [term.name for term in estimate(run(3, model=model, world_size=8)).device.terms_at_peak]
    assert "gathered parameters" in gathered


def test_the_first_pass_is_the_fullest_where_experts_are_gathered_twice() -> None:
    model = load_model_shape("deepseek-ai/DeepSeek-V2")
    keys: dict[str, Any] = {"model": model, "seq_len": 2048, "gradient_checkpointing": True}
    early = estimate(run(3, world_size=512, **keys)).device
    assert early.peak_phase == "first pass"
    assert "optimizer moments" not in {term.name for term in early.terms_at_peak}
    assert early.peak_bytes > early.by_phase["backward"]
    # With the optimizer's states of many parameters, a later step takes more.
    late = estimate(run(3, world_size=16, **keys)).device
    assert late.peak_phase == "backward"
    assert "first pass" not in late.by_phase


def test_stage_2_holds_16_bytes_divided_as_the_paper_says() -> None:
    estimated = estimate(run(2, world_size=4))
    count = shape().num_parameters
    for category, expected in (("parameters", 2 * count), ("optimizer_states", 12 * count / 4)):
        terms = [term for term in estimated.terms_of("gpu", "always") if term.category == category]
        assert total_bytes(terms) == pytest.approx(expected, abs=64)


def test_a_number_of_parameters_has_states_and_buffers_but_no_activations() -> None:
    estimated = estimate(run(3, model=7_500_000_000, world_size=64))
    assert estimated.model_states.total_bytes == 16 * 7_500_000_000 // 64
    assert not estimated.activations_counted
    assert "activations" not in {term.name for term in estimated.terms}
    assert any("activations are not counted" in warning for warning in estimated.warnings)


@pytest.mark.parametrize(("rank", "is_above"), [(256, False), (257, True), (1_000_000, True)])
def test_a_lora_rank_above_the_width_is_noted(rank: int, *, is_above: bool) -> None:
    lora = Lora(rank, ("q_proj", "v_proj"))  # v_proj makes 256 outputs of 512 inputs
    warnings = estimate(run(2, lora=lora)).warnings
    assert any(f"the LoRA rank {rank:,} is above 256" in warning for warning in warnings) is is_above


def test_lora_trains_little_and_saves_less() -> None:
    full, lora = (estimate(run(2, lora=one)) for one in (None, Lora(8, ("q_proj", "v_proj"))))
    assert lora.num_trainable_parameters == 4 * (8 * (512 + 512) + 8 * (512 + 256))
    assert lora.num_parameters == full.num_parameters + lora.num_trainable_parameters
    activations = [
        next(term.bytes for term in one.terms_of("gpu", "forward") if term.name == "activations")
        for one in (full, lora)
    ]
    assert activations[1] < activations[0]


def test_gradients_of_a_tied_embedding_become_a_third_but_for_stage_3() -> None:
    """Autograd adds the second to the first unless that is a view, as torch's linear makes it."""
    model, added = shape(tie_word_embeddings=True), "both gradients of the tied embedding, added"

    def terms(stage: int, **zero: Any) -> dict[str, int]:
        # Little else, so that the fullest moment of the backward pass is that of the embedding.
        estimated = estimate(run(stage, model=model, seq_len=16, zero={"reduce_bucket_size": 1, **zero}))
        return {term.name: term.bytes for term in estimated.terms_of("gpu", "backward")}

    assert added not in terms(3)
    for others in (terms(2), terms(3, memory_efficient_linear=False)):
        assert others[added] == others["gradient of the tied embedding"] == 2 * 32000 * 512


def test_a_head_with_nothing_but_a_bias_of_its_own_is_tied() -> None:
    model = load_model_shape({"model_type": "roberta", "num_hidden_layers": 1, "vocab_size": 50265})
    terms = {term.name: term.bytes for term in estimate(run(2, model=model, seq_len=16)).terms_of("gpu")}
    assert terms["gradient of the tied embedding"] == 2 * 50265 * 768


def test_checkpointing_and_a_chunked_loss_save_memory() -> None:
    plain = estimate(run(2, seq_len=8192)).device.peak_bytes
    checkpointed = estimate(run(2, seq_len=8192, gradient_checkpointing=True)).device.peak_bytes
    for whose in ("zerokit", "liger"):
        chunked = estimate(run(2, seq_len=8192, gradient_checkpointing=True, chunked_loss=whose))
        assert chunked.device.peak_bytes < checkpointed < plain


def test_accumulation_keeps_a_second_set_of_gradients_under_stage_2() -> None:
    model = load_model_shape("meta-llama/Llama-3.2-1B")
    once, often = (
        estimate(run(2, model=model, seq_len=128, gradient_accumulation_steps=steps)).device.by_phase["backward"]
        for steps in (1, 4)
    )
    assert often > once


def test_generation_counts_the_cache() -> None:
    estimated = estimate(run(2, generation=Generation(batch_size=4, seq_len=2048)))
    cache = next(term for term in estimated.terms if term.name == "cache of keys and values")
    assert cache.bytes == 2 * 2 * 4 * (4 * 2048) * 256
    assert "generation" in estimated.device.by_phase


def test_the_fullest_rank_is_taken_unless_one_is_named() -> None:
    peaks = [estimate(run(2, world_size=4, rank=rank)).device.peak_bytes for rank in range(4)]
    assert estimate(run(2, world_size=4)).device.peak_bytes == max(peaks)


def test_unknown_shapes_are_warned_of() -> None:
    assert estimate(run(2)).warnings == ()
    other = estimate(run(2, model=load_model_shape({**shape().config, "model_type": "ministral3"})))
    assert any("ministral3" in warning for warning in other.warnings)
    assert other.device_low_bytes < estimate(run(2)).device_low_bytes
    assert other.device_high_bytes > estimate(run(2)).device_high_bytes
    quantized = estimate(run(3, zero={"zero_quantized_gradients": True}))
    assert any("zero_quantized_gradients" in warning for warning in quantized.warnings)


MIXTRAL = "transformers.models.mixtral.modeling_mixtral"


@pytest.mark.parametrize(
    ("section", "is_leaf", "doubtful"),
    [
        ({}, True, None),
        ({"classes": "MixtralSparseMoeBlock"}, True, None),
        ({"classes": f"{MIXTRAL}.MixtralSparseMoeBlock"}, True, None),
        ({"classes": [], "name_suffixes": "mlp"}, True, None),
        ({"classes": []}, False, None),
        ({"classes": f"{MIXTRAL}.MixtralAttention"}, False, f"{MIXTRAL}.MixtralAttention"),
        ({"classes": "mine.MixtralSparseMoeBlock"}, False, "mine.MixtralSparseMoeBlock"),
        ({"classes": "OlmoeSparseMoeBlock"}, False, "OlmoeSparseMoeBlock"),
        ({"name_suffixes": "self_attn"}, True, "self_attn"),
    ],
)
def test_leaf_modules_are_those_that_deepspeed_matches(
    section: dict[str, Any], is_leaf: bool, doubtful: str | None
) -> None:
    wide = {"num_local_experts": 8, "intermediate_size": 14336}
    model = load_model_shape({**shape().config, "model_type": "mixtral", **wide})
    as_named, leaf, none = (
        estimate(run(3, model=model, world_size=64, seq_len=64, zero={"leaf_module": one}))
        for one in (section, {}, {"classes": []})
    )
    assert leaf.device.by_phase != none.device.by_phase
    assert as_named.device.by_phase == (leaf if is_leaf else none).device.by_phase
    leaf_warnings = [warning for warning in as_named.warnings if "leaf_module" in warning]
    assert all(f"leaf_module: '{doubtful}' is not counted" in warning for warning in leaf_warnings)
    assert len(leaf_warnings) == (doubtful is not None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 0}, "0 is no number of GPUs"),
        ({"micro_batch_size": -1}, "micro_batch_size is -1"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"model": 0}, "model is 0"),
        ({"rank": 4}, "there is no rank 4 among 4"),
        ({"lora": Lora(8, ("nothing",))}, "no module 'nothing'"),
        ({"model": 10, "lora": Lora(8)}, "adapters and frozen modules need a model"),
        ({"model": 10, "num_trainable_parameters": 11}, "11 is more than the model's 10 parameters"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ZerokitError, match=message):
        estimate(run(2, **{"world_size": 4, **changes}))


def test_auto_is_refused_with_its_place() -> None:
    config = ds_config(2, zero={"reduce_bucket_size": "auto"})
    with pytest.raises(ConfigError, match=r"zero_optimization\.reduce_bucket_size"):
        estimate(run(config=config))


@pytest.mark.torch  # builds models of families without code, whose number of layers is changed
def test_every_model_of_the_catalogue_can_be_estimated() -> None:
    for entry in catalogue.entries():
        model = load_model_shape(with_layers(entry.config, 2))
        estimated = estimate(run(3, model=model, seq_len=16, gradient_checkpointing=True))
        assert estimated.activations_counted == (model.model_type != "vit"), entry.id


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_runs_of_a_model_that_share_recordings_are_estimated_as_alone(stage: int) -> None:
    """Recordings are shared by runs in which a stage does the same; those with evaluation have other ones."""
    shared = load_model_shape("meta-llama/Llama-3.2-1B")
    changes: list[dict[str, Any]] = [
        {"seq_len": 64},
        {"seq_len": 128, "eval_batch_size": 64},
        {"seq_len": 64, "gradient_checkpointing": True},
        {"seq_len": 256, "gradient_checkpointing": True, "eval_batch_size": 1},
        {"seq_len": 64, "eval_batch_size": 2},
    ]
    for change in changes:
        found, alone = (
            estimate(run(stage, model=model, world_size=4, micro_batch_size=4, **change))
            for model in (shared, load_model_shape("meta-llama/Llama-3.2-1B"))
        )
        assert found.device.by_phase == alone.device.by_phase


def test_copies_of_autocast_exist_in_forward() -> None:
    """They are made as the pass begins, before anything is computed."""
    model = load_model_shape("openai-community/gpt2")
    plain, cast = (
        estimate(run(0, model=model, seq_len=64, micro_batch_size=8, without_deepspeed=True, autocast=autocast))
        for autocast in (False, True)
    )
    copies = [term for term in cast.terms_of("gpu") if term.phase == "forward" and "copies" in term.name]
    assert sum(term.bytes for term in copies) == 2 * plain.num_parameters


def test_a_70b_model_is_little_work() -> None:
    """298,000 calls: two tenths of a second."""
    model = load_model_shape("meta-llama/Llama-3.1-70B")
    training = run(3, model=model, world_size=64, seq_len=4096, gradient_checkpointing=True)
    assert isinstance(training, TrainingRun)
    assert work.calls_in(lambda: estimate(training)) < 300_000


@pytest.mark.parametrize(("card", "copies", "on_host"), [(None, 2, 1), ("H100", 2, 1), ("L4", 1, 2)])
def test_parameters_are_flattened_on_the_gpu_only_if_there_is_room(
    card: str | None, copies: int, on_host: int
) -> None:
    """deepspeedai/DeepSpeed#7482: the second copy is never what a run dies of."""
    number = 8 * 10**9
    training = run(2, model=number, world_size=64, seq_len=None)
    cluster = Cluster(64, gpu=None if card is None else find_gpu(card))
    found = estimate(replace(training, cluster=cluster))
    assert int(found.device.by_phase["init"] / (2 * number)) == copies
    assert int(found.host.peak_bytes / (2 * number)) == on_host


def test_master_weights_on_the_host_are_never_on_the_gpu() -> None:
    """A copy that waits is converted on the host: aten/src/ATen/native/cuda/Copy.cu."""
    found = estimate(run(2, model=8 * 10**9, zero={"offload_optimizer": {"device": "cpu"}}))
    assert not any(term.name == "master weights" for term in found.terms_of("gpu"))
