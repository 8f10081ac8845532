"""Decoding in batches that change, next to transformers' ``generate`` with one prompt at a time."""

from __future__ import annotations

import json
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, GenerationConfig

from tests.examples import examples
from tests.tiny import launch, tiny_tokenizer
from zerokit.generation import CACHE_NAMES
from zerokit.generation.decoding import Decoder, Decoding, pad
from zerokit.generation.output import Completion, CompletionCutter
from zerokit.generation.queues import SharedQueue
from zerokit.generation.requests import Decoded, OwnRequests, Request
from zerokit.generation.sampling import completion_key, draw_tokens

pytestmark = pytest.mark.torch

SCRIPT = Path(__file__).parent / "scripts" / "uneven_ranks.py"
CPU = torch.device("cpu")
VOCABULARY = 101
ENDS = list(range(3, 23))
"""So many that completions end at all steps."""
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
HEADS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SIZES,
    "qwen3": {**SIZES, "head_dim": 8, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "gemma3_text": {
        **{**SIZES, "head_dim": 8, "sliding_window": 6},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {**SIZES, "sliding_window": 6},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "opt": {**HEADS, "ffn_dim": 48, "max_position_embeddings": 128, "word_embed_proj_dim": 32},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "falcon": {**HEADS, "alibi": True},
    "trocr": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
    "t5": {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8},
    "bart": {
        **{
            f"{half}_{name}": value
            for half in ("encoder", "decoder")
            for name, value in (("layers", 2), ("ffn_dim", 48))
        },
        **{"d_model": 32, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "forced_eos_token_id": None},
    },
}


def tiny(kind: str) -> Any:
    """A model with random weights, large enough that tokens vary."""
    config = AutoConfig.for_model(kind, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, **MODELS[kind])
    torch.manual_seed(1)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    model.generation_config = GenerationConfig()
    return model


def options(**values: Any) -> GenerationConfig:
    """Greedy decoding of up to 20 tokens."""
    base = {"max_new_tokens": 20, "eos_token_id": ENDS, "pad_token_id": 0, "decoder_start_token_id": 2}
    return GenerationConfig(**{**base, "do_sample": False, **values})


def some_prompts(count: int = 12) -> list[list[int]]:
    """Short and long ones, mixed."""
    chance = random.Random(0)
    return [
        [chance.randrange(3, VOCABULARY) for _ in range(chance.choice([1, 2, 5, 9, 14, 30]))] for _ in range(count)
    ]


def one_by_one(model: Any, prompts: list[list[int]], config: GenerationConfig, **more: Any) -> list[list[int]]:
    """What transformers generates for each prompt alone."""
    begin = [1 if model.config.is_encoder_decoder else len(prompt) for prompt in prompts]
    inputs = [torch.tensor([prompt]) for prompt in prompts]
    masks = [torch.ones_like(ids) for ids in inputs]  # a prompt may have the token that pads
    made = [
        model.generate(input_ids=ids, attention_mask=mask, generation_config=config, **more)[0]
        for ids, mask in zip(inputs, masks, strict=True)
    ]
    return [tokens[start:].tolist() for tokens, start in zip(made, begin, strict=True)]


def decode(
    model: Any, prompts: list[list[int]], config: GenerationConfig, *, completions: int = 1, **more: Any
) -> list[list[list[int]]]:
    """The completions of each prompt, up to their end."""
    found: dict[int, list[list[int]]] = {}

    def done(decoded: Decoded) -> None:
        assert decoded.index not in found
        found[decoded.index] = [up_to_end(tokens) for tokens in decoded.completions]

    tokenizer = more.pop("tokenizer", None)
    queue = OwnRequests([Request(index, prompt, completions) for index, prompt in enumerate(prompts)])
    Decoder(model, tokenizer, Decoding(config, **more), device=CPU).run(queue, done)
    return [found[index] for index in range(len(prompts))]


@pytest.mark.parametrize("completions", [1, 3])
def test_a_rank_starts_with_its_share(completions: int) -> None:
    events: list[int | None] = []

    class Counting(SharedQueue):
        def take(self, most: int) -> list[Request]:
            found = super().take(most)
            events.append(len(found))
            return found

    requests = [Request(index, [5, 6], completions) for index in range(16)]
    sampled = {"do_sample": completions > 1, "num_return_sequences": completions}
    config = options(eos_token_id=VOCABULARY, max_new_tokens=3, **sampled)  # no row ends before the others
    queue = Counting(requests, torch.distributed.HashStore(), 8)
    Decoder(tiny("llama"), None, Decoding(config), device=CPU).run(queue, lambda _: events.append(None))
    assert events[: events.index(None)] == [2]


def up_to_end(tokens: list[int]) -> list[int]:
    """Without padding after the end token."""
    return tokens[: next((at for at, token in enumerate(tokens) if token in ENDS), len(tokens)) + 1]


@pytest.mark.parametrize("kind", MODELS)
def test_greedy_tokens_are_those_of_transformers(kind: str) -> None:
    model, prompts, config = tiny(kind), some_prompts(), options()
    expected = [[tokens] for tokens in one_by_one(model, prompts, config)]
    assert len({len(tokens) for (tokens,) in expected}) > 1 or kind == "mpt"
    assert decode(model, prompts, config, batch_size=3) == expected
    assert decode(model, prompts, config, max_batch_tokens=250) == expected


def test_a_row_ends_with_the_positions_of_the_model() -> None:
    model, prompts, config = tiny("gpt2"), [[5] * 120, [6] * 9], options(eos_token_id=None)
    fits = options(eos_token_id=None, max_new_tokens=8)
    expected = [*one_by_one(model, prompts[:1], fits), *one_by_one(model, prompts[1:], config)]
    assert decode(model, prompts, config) == [[up_to_end(tokens)] for tokens in expected]


@pytest.mark.parametrize(
    "values",
    [
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
        {"min_new_tokens": 7, "begin_suppress_tokens": [30, 40], "exponential_decay_length_penalty": (9, 1.5)},
        {"forced_eos_token_id": 5, "suppress_tokens": [60, 61], "eos_token_id": 3},
        {"num_beams": 2},
        {"num_beams": 2, "no_repeat_ngram_size": 1, "pad_token_id": 60},
        {"use_cache": False},
    ],
    ids=lambda values: next(iter(values)),
)
def test_options_keep_their_meaning_in_a_batch_with_padding(values: dict[str, Any]) -> None:
    model, prompts, config = tiny("llama"), some_prompts(), options(**values)
    expected = [[up_to_end(tokens)] for tokens in one_by_one(model, prompts, config)]
    assert decode(model, prompts, config, batch_size=5) == expected


def test_processors_of_earlier_prompts_are_freed() -> None:
    made: list[weakref.ref[Any]] = []
    prompts = [[5] * length for length in range(1, 31)]
    decoder = Decoder(tiny("gpt2"), None, Decoding(options(repetition_penalty=1.1), batch_size=2), device=CPU)
    usual = decoder.base._get_logits_processor

    def make(*args: Any, **more: Any) -> Any:
        processors = usual(*args, **more)
        made.append(weakref.ref(processors[0]))
        return processors

    decoder.base._get_logits_processor = make
    decoder.run(OwnRequests([Request(index, prompt) for index, prompt in enumerate(prompts)]), lambda _: None)
    assert len(made) == len(prompts)
    assert sum(each() is not None for each in made) <= 4


def test_stop_strings_end_their_row_only(tmp_path_factory: pytest.TempPathFactory) -> None:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    model, prompts = tiny("llama"), some_prompts()
    config = options(eos_token_id=None, stop_strings=["a", "Q", "7"])
    expected = one_by_one(model, prompts, config, tokenizer=tokenizer)
    assert {len(tokens) for tokens in expected} > {20}
    found: dict[int, list[int]] = {}
    queue = OwnRequests([Request(index, prompt) for index, prompt in enumerate(prompts)])
    decoder = Decoder(model, tokenizer, Decoding(config), device=torch.device("cpu"))
    decoder.run(queue, lambda decoded: found.update({decoded.index: decoded.completions[0]}))
    assert [found[index] for index in range(len(prompts))] == expected


@pytest.mark.parametrize("use_cache", [True, False])
def test_stop_strings_that_begin_in_the_prompt_end_the_completion(
    use_cache: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer = tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))
    model, prompts = tiny("llama"), some_prompts()
    free = one_by_one(model, prompts, options(eos_token_id=None, use_cache=use_cache))
    stop = tokenizer.decode([prompts[0][-1], free[0][0]])
    config = options(eos_token_id=None, stop_strings=[stop], use_cache=use_cache)
    expected = one_by_one(model, prompts, config, tokenizer=tokenizer)
    assert [len(tokens) for tokens in expected] == [1] + [20] * (len(prompts) - 1)
    found: dict[int, Completion] = {}
    cut = CompletionCutter(tokenizer, config)
    queue = OwnRequests([Request(index, prompt) for index, prompt in enumerate(prompts)])
    Decoder(model, tokenizer, Decoding(config), device=CPU).run(
        queue, lambda decoded: found.update({decoded.index: cut(decoded.completions[0], decoded.prompt)})
    )
    assert found.pop(0) == Completion("", 1, "stop")
    assert [found[index].num_tokens for index in sorted(found)] == [20] * (len(prompts) - 1)


def test_an_adapter_decodes_like_its_merged_model() -> None:
    torch.manual_seed(2)
    adapted = get_peft_model(
        tiny("llama"), LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    adapted.eval()
    found = decode(adapted, some_prompts(), options(), batch_size=4)
    assert found != decode(tiny("llama"), some_prompts(), options(), batch_size=4)
    merged = adapted.merge_and_unload()
    assert found == [[tokens] for tokens in one_by_one(merged, some_prompts(), options())]


@pytest.mark.parametrize(("kind", "beams"), [("llama", 1), ("t5", 1), ("llama", 3)])
def test_samples_depend_on_seed_prompt_and_number_only(kind: str, beams: int) -> None:
    model, prompts = tiny(kind), some_prompts(5)
    config = options(do_sample=True, temperature=0.8, top_k=30, num_beams=beams, num_return_sequences=3)
    if beams > 1:  # they draw more tokens for each that ends a row: with many of these, all that there are
        config.eos_token_id = 2
    found = decode(model, prompts, config, completions=3, batch_size=1)
    assert found == decode(model, prompts, config, completions=3, batch_size=8)
    assert found == decode(model, prompts, config, completions=3, max_batch_tokens=170)
    other = decode(model, prompts, config, completions=3, batch_size=8, seed=1)
    samples = [tuple(tokens) for completions in (*found, *other) for tokens in completions if len(tokens) > 2]
    assert found != other
    assert len({*samples}) == len(samples) or beams > 1, "beams of two seeds may end alike"


@examples(20)
@given(st.lists(st.floats(-4, 4), min_size=2, max_size=8), st.integers(-9, 2**70), st.integers(0, 2000))
def test_tokens_are_drawn_with_the_probabilities_of_softmax(scores: list[float], seed: int, step: int) -> None:
    draws = 4000
    keys = torch.tensor([completion_key(seed, index, 1) for index in range(draws)], dtype=torch.int32)
    row = torch.tensor([*scores, -torch.inf])
    probabilities = row.softmax(0)
    for its_keys, steps in ((keys, torch.full_like(keys, step)), (keys[:1].expand(draws), torch.arange(draws))):
        drawn = draw_tokens(row.expand(draws, -1), its_keys, steps)
        counts = torch.bincount(drawn, minlength=len(row))
        spread = (draws * probabilities * (1 - probabilities)).sqrt()
        assert ((counts - draws * probabilities).abs() <= 6 * spread + 1).all()


class Passes:
    """Shapes of the calls of a model: rows, new columns, all columns."""

    def __init__(self, model: Any) -> None:
        self.shapes: list[tuple[int, int, int]] = []
        model.register_forward_pre_hook(self._record, with_kwargs=True)

    def _record(self, _: Any, __: Any, inputs: dict[str, Any]) -> None:
        ids = inputs["input_ids"]
        cache = next(inputs[name] for name in CACHE_NAMES if name in inputs)
        self.shapes.append((*ids.shape, cache.get_seq_length() + ids.shape[1]))


def test_completions_of_a_prompt_share_its_first_pass() -> None:
    model = tiny("llama")
    passes = Passes(model)
    decode(model, some_prompts(4), options(do_sample=True), completions=4, batch_size=8)
    prompts = [rows for rows, columns, every in passes.shapes if columns == every]
    assert sum(prompts) == 4
    assert max(rows for rows, *_ in passes.shapes) == 8


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(60, 700), st.integers(0, 9))
@examples(15)
def test_batches_stay_in_their_budget_and_are_refilled(lengths: list[int], budget: int, seed: int) -> None:
    model = tiny("llama")
    passes = Passes(model)
    chance = random.Random(seed)
    prompts = [chance.choices(range(3, VOCABULARY), k=length) for length in lengths]
    found = decode(model, prompts, options(), max_batch_tokens=budget)
    for rows, _, columns in passes.shapes:
        assert rows * columns <= budget or rows == 1
    made = sum(len(tokens) for (tokens,) in found)
    assert sum(rows for rows, *_ in passes.shapes) <= 2 * made


def test_an_error_of_a_receiver_leaves_the_loop() -> None:
    def fail(_: Decoded) -> None:
        raise OSError("disk full")

    decoder = Decoder(tiny("llama"), None, Decoding(options()), device=torch.device("cpu"))  # type: ignore[arg-type]
    with pytest.raises(OSError, match="disk full"):
        decoder.run(OwnRequests([Request(0, [5])]), fail)


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=7), min_size=1, max_size=5), st.booleans())
def test_padding_is_on_one_side(sequences: list[list[int]], on_left: bool) -> None:
    ids, mask = pad(sequences, 3, on_left=on_left)
    for row, ones, sequence in zip(ids.tolist(), mask.tolist(), sequences, strict=True):
        gap = [0] * (max(map(len, sequences)) - len(sequence))
        rest = [3] * len(gap)
        assert row == (rest + sequence if on_left else sequence + rest)
        assert ones == (gap + [1] * len(sequence) if on_left else [1] * len(sequence) + gap)


@pytest.mark.distributed
@pytest.mark.parametrize("words", [[], ["beams"]], ids=["loop", "generate"])
def test_ranks_of_one_model_decode_different_numbers_of_prompts(words: list[str], tmp_path: Path) -> None:
    run = launch([SCRIPT, *words], ranks=2, launcher="none", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    for rank, count in enumerate((6, 1)):
        found, expected = json.loads((tmp_path / f"rank{rank}.json").read_text(encoding="utf-8"))
        assert len(found) == count
        assert sorted(found) == sorted(expected)
