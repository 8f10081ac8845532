"""Sampling options: names and values of transformers' ``GenerationConfig``, checked before a model loads.

transformers checks some values when the config is made, others in the first decoding step, and ignores the
rest. Here types are checked by the tables below, the rest by running the options once on a tiny model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zerokit.errors import ConfigError, ZerokitError, collect_errors, did_you_mean, raise_together
from zerokit.passthrough_options import PassthroughOption, parse_passthrough_options

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from zerokit.generation.model import ModelFiles

DEFAULT_MAX_NEW_TOKENS = 64

_WHOLE_FROM_1 = ("max_new_tokens", "num_beams", "num_return_sequences")
_WHOLE_FROM_0 = ("min_new_tokens", "top_k", "no_repeat_ngram_size", "pad_token_id")
_FRACTIONS = ("top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff")
_NUMBERS = ("temperature", "repetition_penalty", "length_penalty", "max_time")
_SWITCHES = ("do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "disable_compile")

_TOKENS = (
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)

_SAMPLING_ONLY = ("temperature", "top_k", *_FRACTIONS)
_BEAMS_ONLY = ("length_penalty", "early_stopping")

_HOW = "Quote a prompt that has spaces, and write --prompt before each"
_TEXT_OUTPUT = "The output is text; there is nothing to set"
_ASSISTED_DECODING = "Leave it out: assisted decoding takes one prompt at a time"
_MOVED_TO_HUB = "Leave it out: transformers moved this method to the Hub"
_ENCODER_DECODER = "Leave it out: it is for encoder-decoder models"
REFUSED: Mapping[str, str] = {
    "max_length": "It counts the prompt and its padding too, which differ by batch: use --max_new_tokens",
    "min_length": "It counts the prompt and its padding too, which differ by batch: use --min_new_tokens",
    "guidance_scale": "Leave it out: it runs the model outside the steps that ranks take together",
    "token_healing": "Leave it out: it changes the prompt",
    "compile_config": "Leave it out: ZeRO-3 does not compile",
    "max_cache_len": "Leave it out: the cache is sized by --max_new_tokens",
    "continuous_batching_config": "Leave it out: use --batch-size",
    "is_assistant": _ASSISTED_DECODING,
    "use_mtp": _ASSISTED_DECODING,
    "speculation_type": _ASSISTED_DECODING,
    "prompt_lookup_num_tokens": _ASSISTED_DECODING,
    "max_matching_ngram_size": _ASSISTED_DECODING,
    "num_assistant_tokens": _ASSISTED_DECODING,
    "num_assistant_tokens_schedule": _ASSISTED_DECODING,
    "assistant_confidence_threshold": _ASSISTED_DECODING,
    "assistant_early_exit": _ASSISTED_DECODING,
    "assistant_lookbehind": _ASSISTED_DECODING,
    "assistant_ensemble_weight": _ASSISTED_DECODING,
    "target_lookbehind": _ASSISTED_DECODING,
    "penalty_alpha": _MOVED_TO_HUB,
    "dola_layers": _MOVED_TO_HUB,
    "constraints": _MOVED_TO_HUB,
    "force_words_ids": _MOVED_TO_HUB,
    "num_beam_groups": _MOVED_TO_HUB,
    "diversity_penalty": _MOVED_TO_HUB,
    "low_memory": _MOVED_TO_HUB,
    "encoder_repetition_penalty": _ENCODER_DECODER,
    "encoder_no_repeat_ngram_size": _ENCODER_DECODER,
    "decoder_start_token_id": _ENCODER_DECODER,
    "output_attentions": _TEXT_OUTPUT,
    "output_hidden_states": _TEXT_OUTPUT,
    "output_scores": _TEXT_OUTPUT,
    "output_logits": _TEXT_OUTPUT,
    "return_dict_in_generate": _TEXT_OUTPUT,
    "transformers_version": _TEXT_OUTPUT,
}
"""GenerationConfig name that zerokit refuses -> what to do instead."""


@dataclass(frozen=True)
class Sampling:
    """Decoding options of the command line."""

    values: dict[str, Any]
    """GenerationConfig name -> value. A value of None is left out."""
    written: dict[str, str]
    """GenerationConfig name -> the option as it was written, for errors."""

    def where(self, name: str) -> str:
        """The option that set `name`, or its usual spelling."""
        return self.written.get(name, f"--{name}")


def known_names() -> list[str]:
    """The names that the installed GenerationConfig knows."""
    from transformers import GenerationConfig

    return [name for name in vars(GenerationConfig()) if not name.startswith("_")]


def parse_sampling(words: Sequence[str], own_names: Sequence[str] = ()) -> Sampling:
    """Read ``--name value``, ``--name=value`` and, for a switch, ``--name``.

    Raises:
        ZerokitError: an unknown, useless or repeated option, or a value of the wrong type; all of them
            together.
    """
    names = known_names()
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    errors: list[ZerokitError] = []
    with collect_errors(errors):
        for given in parse_passthrough_options(words, hint=lambda _: _HOW):
            with collect_errors(errors):
                name = given.option.removeprefix("--").replace("-", "_")
                _check_name(given.option, name, names, own_names)
                if name in written:
                    raise ConfigError("is given twice", where=given.option, hint="Give it once")
                written[name] = given.option
                value = _value(name, given)
                if value is not None:
                    values[name] = value
    raise_together(errors)
    return Sampling(values, written)


def _check_name(option: str, name: str, names: list[str], own_names: Sequence[str]) -> None:
    if name in REFUSED and name in names:
        raise ConfigError("is not available here", where=option, hint=REFUSED[name])
    if name not in names:
        choices = [*own_names, *(f"--{known}" for known in names if known not in REFUSED)]
        raise ConfigError("unknown option", where=option, hint=did_you_mean(option, choices))


def _value(name: str, given: PassthroughOption) -> Any:
    if name == "stop_strings" and given.text and not given.text.startswith(("[", '"', "'")):
        return given.text  # "###" would be a comment in YAML
    value = True if given.text is None and name in _SWITCHES else given.value()
    if value is None:
        return None
    expected = _expected(name, value)
    if expected is not None:
        raise ConfigError(
            f"expected {expected}, found '{given.text}'", where=given.option, hint="Change the value"
        )
    return float(value) if name in (*_NUMBERS, *_FRACTIONS) else value


def _expected(name: str, value: Any) -> str | None:
    """The expected type if `value` has another one; None if it is right."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in _SWITCHES:
        return None if isinstance(value, bool) else "true or false"
    if name in _WHOLE_FROM_1:
        return None if whole and value >= 1 else "a whole number from 1"
    if name in _WHOLE_FROM_0:
        return None if whole and value >= 0 else "a whole number from 0"
    number = whole or isinstance(value, float)
    if name in _FRACTIONS:
        return None if number and 0 <= value <= 1 else "a number from 0 to 1"
    if name in _NUMBERS:
        return None if number and abs(value) < float("inf") else "a finite number"
    return None


def settle_sampling(sampling: Sampling, model: ModelFiles) -> GenerationConfig:
    """The model's own settings with the command line's on top, and defaults.

    End-of-text and padding tokens default to the tokenizer's. Without a padding token that the model knows,
    the first end-of-text token pads.

    Raises:
        ConfigError: values that transformers refuses, tokens that the model lacks, or options without effect.
    """
    _check_tokens(sampling, model.vocab_size)
    config = _merge(sampling, model.defaults)
    if config.max_new_tokens is None:
        config.max_new_tokens = DEFAULT_MAX_NEW_TOKENS
    if config.eos_token_id is None:
        config.eos_token_id = model.tokenizer.eos_token_id
    pads = (config.pad_token_id, model.tokenizer.pad_token_id, min(end_tokens(config), default=0))
    # Tokenizers come with a padding token for which the model has no embedding, configs with -1.
    config.pad_token_id = next((pad for pad in pads if pad is not None and 0 <= pad < model.vocab_size), 0)
    if config.disable_compile is None:
        config.disable_compile = True  # a compiled forward pass would skip the hooks that gather parameters
    _check_effect(sampling, config)
    return config


def end_tokens(config: GenerationConfig) -> frozenset[int]:
    """The tokens that end a completion; may be empty."""
    ends = config.eos_token_id
    if ends is None:
        return frozenset()
    return frozenset(ends if isinstance(ends, list) else [ends])


def try_sampling(sampling: Sampling, config: GenerationConfig, model: ModelFiles) -> None:
    """Try the options on a tiny model, before loading. ConfigError if transformers refuses them."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=2,
        intermediate_size=2,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    trial = GenerationConfig.from_dict({**config.to_dict(), "max_new_tokens": 2, "min_new_tokens": None})
    try:
        with torch.random.fork_rng(devices=[]):
            LlamaForCausalLM(shape).eval().generate(
                input_ids=torch.zeros(2, 2, dtype=torch.long),
                attention_mask=torch.ones(2, 2, dtype=torch.long),
                generation_config=trial,
                tokenizer=model.tokenizer,
                synced_gpus=False,
            )
    except Exception as error:
        # ValueError, TypeError, IndexError, ImportError: each option has its own way to refuse.
        raise _refused(sampling, error) from error


def _check_tokens(sampling: Sampling, vocab_size: int) -> None:
    for name in _TOKENS:
        value = sampling.values.get(name)
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not 0 <= token < vocab_size:
                raise ConfigError(
                    f"the model has no token {token}",
                    where=sampling.where(name),
                    hint=f"Its tokens are 0 to {vocab_size - 1}",
                )


def _merge(sampling: Sampling, defaults: GenerationConfig) -> GenerationConfig:
    from transformers import GenerationConfig

    # A model may come with guidance, say, which would make a rank run the model while others do not.
    own = {name: value for name, value in defaults.to_dict().items() if name not in REFUSED}
    try:
        return GenerationConfig.from_dict({**own, **sampling.values})
    except Exception as error:
        # The config's own checks raise ValueError, and TypeError on values they did not expect.
        raise _refused(sampling, error) from error


def _refused(sampling: Sampling, error: Exception) -> ConfigError:
    text = " ".join(str(error).split()) or type(error).__name__
    found = {name: re.search(rf"\b{name}\b", text) for name in sampling.values}
    named = sorted((match.start(), name) for name, match in found.items() if match)
    options = [sampling.where(named[0][1])] if named else list(sampling.written.values())
    where = " ".join(options) or "generation_config.json"
    reason = re.split(r"(?<=[.!])\s", text, maxsplit=1)[0]
    return ConfigError(f"transformers refuses it: {reason}", where=where, hint="Change the value")


def _check_effect(sampling: Sampling, config: GenerationConfig) -> None:
    """Refuse options that transformers would ignore."""
    for names, is_on, fix in (
        (_SAMPLING_ONLY, config.do_sample is True, "Add --do_sample true"),
        (_BEAMS_ONLY, (config.num_beams or 1) > 1, "Add --num_beams 4"),
    ):
        given = [name for name in names if name in sampling.values]
        if given and not is_on:
            raise ConfigError("would have no effect", where=sampling.where(given[0]), hint=fix)
