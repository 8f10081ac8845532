import copy
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest

from zerokit.errors import ConfigError, ZerokitError
from zerokit.generation.model import ModelFiles
from zerokit.generation.sampling import (
    DEFAULT_MAX_NEW_TOKENS,
    REFUSED,
    end_tokens,
    known_names,
    parse_sampling,
    settle_sampling,
    try_sampling,
)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--max_new_tokens 4", {"max_new_tokens": 4}),
        ("--max-new-tokens=4", {"max_new_tokens": 4}),
        ("--do_sample --temperature 1", {"do_sample": True, "temperature": 1.0}),
        ("--do-sample false", {"do_sample": False}),
        ("--length_penalty -0.5 --num_beams 2", {"length_penalty": -0.5, "num_beams": 2}),
        ("--eos_token_id [1,2]", {"eos_token_id": [1, 2]}),
        ("--stop_strings ###", {"stop_strings": "###"}),
        ('--stop_strings ["a","\\n"]', {"stop_strings": ["a", "\n"]}),
        ("--temperature null", {}),
    ],
)
def test_names_and_values(words: str, values: dict[str, Any]) -> None:
    assert parse_sampling(words.split(" ")).values == values


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--max_new_token 4", "--max_new_token: unknown option. Did you mean '--max_new_tokens'?"),
        ("--num-gpu 4", "--num-gpu: unknown option. Did you mean '--num-gpus'?"),
        ("--batchsize 4", "--batchsize: unknown option. Did you mean '--batch-size'?"),
        ("--max-new-tokens", "--max-new-tokens: has no value"),
        ("--max_new_tokens 4 --max-new-tokens 5", "--max-new-tokens: is given twice"),
        ("--max_new_tokens 0", "--max_new_tokens: expected a whole number from 1, found '0'"),
        ("--num_beams 2.5", "--num_beams: expected a whole number from 1"),
        ("--num_beams true", "--num_beams: expected a whole number from 1"),
        ("--top_k -1", "--top_k: expected a whole number from 0"),
        ("--top_p 1.5", "--top_p: expected a number from 0 to 1"),
        ("--temperature warm", "--temperature: expected a finite number, found 'warm'"),
        ("--stop_strings=", "--stop_strings: a stop string is empty"),
        ('--stop_strings ["a",""]', "--stop_strings: a stop string is empty"),
        ("--temperature .inf", "--temperature: expected a finite number"),
        ("--max_time 0", "--max_time: expected a number above 0, found '0'"),
        ("--do_sample maybe", "--do_sample: expected true or false"),
        ("--eos_token_id [1", "--eos_token_id: the value '[1' is not YAML"),
        ("--max_length 20", "--max_length: is not available here. It counts the prompt"),
        ("--guidance-scale 2", "--guidance-scale: is not available here"),
        ("--do_sample true stray", "command line: 'stray' belongs to no option"),
    ],
)
def test_mistakes_name_the_option(words: str, message: str) -> None:
    with pytest.raises(ZerokitError) as caught:
        parse_sampling(words.split(), ("--num-gpus", "--batch-size"))
    assert str(caught.value).startswith(message)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ZerokitError) as caught:
        parse_sampling(["--top_p", "2", "--max_token", "4", "--max_length", "8", "--top_k", "5", "stray"])
    assert [error.where for error in (caught.value, *caught.value.others)] == [
        "--top_p",
        "--max_token",
        "--max_length",
        "command line",
    ]


def test_refused_names_are_real_ones() -> None:
    # A name that GenerationConfig drops is then "unknown"; one that is misspelt here would never be.
    assert len(REFUSED.keys() & set(known_names())) >= 0.9 * len(REFUSED)


def test_what_nobody_says(model: ModelFiles) -> None:
    config = settle_sampling(parse_sampling([]), model)
    assert config.max_new_tokens == DEFAULT_MAX_NEW_TOKENS
    assert end_tokens(config) == {0}
    assert config.pad_token_id == 1


def test_the_command_line_goes_before_the_model(model: ModelFiles) -> None:
    defaults = type(model.defaults)(do_sample=True, temperature=0.6, max_new_tokens=9, eos_token_id=[5, 7])
    own = replace(model, defaults=defaults)
    config = settle_sampling(parse_sampling(["--temperature", "0.7", "--max_new_tokens", "3"]), own)
    assert (config.do_sample, config.temperature, config.max_new_tokens) == (True, 0.7, 3)
    assert end_tokens(config) == {5, 7}


def test_what_is_refused_is_not_taken_from_the_model_either(model: ModelFiles) -> None:
    defaults = type(model.defaults)(guidance_scale=2.0, max_length=4096, min_length=3)
    own = replace(model, defaults=defaults)
    config = settle_sampling(parse_sampling([]), own)
    assert (config.guidance_scale, config.max_length, config.min_length) == (None, None, None)


def test_a_padding_token_that_the_model_lacks(model: ModelFiles) -> None:
    defaults = type(model.defaults)(pad_token_id=-1, eos_token_id=[7, 5])
    own = replace(model, defaults=defaults)
    assert settle_sampling(parse_sampling([]), own).pad_token_id == model.tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--temperature 0.7", "--temperature: would have no effect. Add --do_sample true"),
        ("--do_sample false --top-p 0.5", "--top-p: would have no effect"),
        ("--early_stopping true", "--early_stopping: would have no effect. Add --num_beams"),
        ("--eos_token_id 320", "--eos_token_id: the model has no token 320. Its tokens are 0 to 319"),
        ("--num_return_sequences 2", "--num_return_sequences: transformers refuses it"),
        ("--do_sample true --temperature 0", "--temperature: transformers refuses it"),
        ("--eos_token_id end", "--eos_token_id: expected a token or a list of tokens, found"),
        ("--eos_token_id [0,null]", "--eos_token_id: expected a token or a list of tokens, found [0, null]"),
        ("--min_new_tokens 65", "--min_new_tokens: is 65, and max_new_tokens is 64. Lower it"),
        ("--num_beams 2 --num_return_sequences 3", "--num_return_sequences: transformers refuses it"),
        ("--bad_words_ids [1]", "--bad_words_ids: transformers refuses it"),
        ("--cache_implementation fast", "--cache_implementation: transformers refuses it"),
    ],
)
def test_what_transformers_would_find_while_decoding(
    words: str, message: str, model: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = parse_sampling(words.split())
    with pytest.raises(ConfigError) as caught:
        try_sampling(sampling, settle_sampling(sampling, model), model)
    assert str(caught.value).startswith(message)
    if "no effect" in message:  # about which transformers would warn
        monkeypatch.setattr("transformers.GenerationConfig.from_dict", lambda *_: pytest.fail("a warning"))
        with pytest.raises(ConfigError, match="no effect"):
            settle_sampling(sampling, model)


def test_a_trial_counts_for_its_tokenizer_alone(model: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = parse_sampling(["--max_new_tokens", "7", "--stop_strings", "unique"])
    other = replace(model, tokenizer=copy.deepcopy(model.tokenizer))
    try_sampling(sampling, settle_sampling(sampling, model), model)
    monkeypatch.setattr("transformers.LlamaForCausalLM.generate", lambda *_, **__: 1 / 0)
    try_sampling(sampling, settle_sampling(sampling, model), model)
    with pytest.raises(ConfigError, match="division by zero"):
        try_sampling(sampling, settle_sampling(sampling, other), other)
    tokenizer = weakref.ref(other.tokenizer)
    del other
    gc.collect()
    assert tokenizer() is None


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--num_beams 3 --num_return_sequences 2 --early_stopping true",
        "--do_sample true --top_k 0 --min_p 0.1 --num_return_sequences 2",
        "--stop_strings ### --no_repeat_ngram_size 2 --repetition_penalty 1.2 --min_new_tokens 3",
        "--use_cache false --suppress_tokens [3,4]",
        "--do_sample true --num_return_sequences 2000000000",
        "--num_beams 2000000000 --num_return_sequences 1000000000",
    ],
)
def test_good_options_pass_the_trial(words: str, model: ModelFiles) -> None:
    sampling = parse_sampling(words.split())
    try_sampling(sampling, settle_sampling(sampling, model), model)


@pytest.mark.parametrize(
    ("own", "words", "message"),
    [
        ({"eos_token_id": [0, None]}, "", "eos_token_id is [0, null], not a token or a list of tokens"),
        ({"num_beams": "2"}, "", 'num_beams is "2", not a whole number from 1'),
        ({"do_sample": 1}, "--max_new_tokens 3", "do_sample is 1, not true or false"),
        ({"repetition_penalty": -1.0}, "--max_new_tokens 3", "transformers refuses it: `penalty` has to be"),
        ({"num_return_sequences": 2}, "--max_new_tokens 3", "transformers refuses it: Greedy methods"),
        ({"cache_implementation": "fast"}, "--temperature 2 --do_sample true", "transformers refuses it: "),
    ],
)
def test_mistakes_of_the_model_name_its_file(own: dict[str, Any], words: str, message: str, model: ModelFiles) -> None:
    defaults = type(model.defaults)()
    vars(defaults).update(own)
    files, sampling = replace(model, defaults=defaults), parse_sampling(words.split())
    with pytest.raises(ConfigError) as caught:
        try_sampling(sampling, settle_sampling(sampling, files), files)
    assert str(caught.value).startswith(f"generation_config.json: {message}")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"top_k": 50.0, "num_beams": 1.0, "early_stopping": "never", "pad_token_id": -1}, ""),
        ({"top_k": "50", "pad_token_id": [1]}, "--do_sample true --top_k 3 --pad_token_id 0"),
    ],
)
def test_what_the_run_does_not_use_of_the_model_may_be_odd(own: dict[str, Any], words: str, model: ModelFiles) -> None:
    defaults = type(model.defaults)()
    vars(defaults).update(own)
    files, sampling = replace(model, defaults=defaults), parse_sampling(words.split())
    config = settle_sampling(sampling, files)
    try_sampling(sampling, config, files)
    assert config.num_beams in (None, 1)


def test_a_mistake_of_an_option_is_not_the_model_s(model: ModelFiles) -> None:
    own = replace(model, defaults=type(model.defaults)(do_sample=True, temperature=0.6))
    sampling = parse_sampling(["--max_new_tokens", "3", "--repetition_penalty", "-1"])
    with pytest.raises(ConfigError, match=r"^--max_new_tokens --repetition_penalty: transformers refuses it"):
        try_sampling(sampling, settle_sampling(sampling, own), own)


def test_an_encoder_decoder_has_a_first_token(model: ModelFiles) -> None:
    config = copy.deepcopy(model.config)
    config.is_encoder_decoder = True
    for start in ({"bos_token_id": 3}, {"decoder_start_token_id": 3}):
        files = replace(model, config=config, defaults=type(model.defaults)(**start))
        settle_sampling(parse_sampling([]), files)
    with pytest.raises(ConfigError, match=r"^generation_config\.json: decoder_start_token_id, .*, is null"):
        settle_sampling(parse_sampling([]), replace(model, config=config, defaults=type(model.defaults)()))
