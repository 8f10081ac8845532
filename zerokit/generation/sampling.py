"""Sampling options: names and values of transformers' ``GenerationConfig``, checked before a model loads.

transformers checks some values when the config is made, others in the first decoding step, and ignores the
rest. Here types are checked by the tables below, the rest by running the options once on a tiny model.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from zerokit.errors import ConfigError, ZerokitError, collect_errors, did_you_mean, raise_together
from zerokit.passthrough_options import PassthroughOption, parse_passthrough_options
from zerokit.tables import table_of

if TYPE_CHECKING:
    import torch
    from transformers import GenerationConfig, PreTrainedTokenizerBase

    from zerokit.generation.model import ModelFiles

DEFAULT_MAX_NEW_TOKENS = 64

_TABLE = table_of(__file__)
_TYPES = {name: words for words, names in _TABLE["types"].items() for name in names}
"""GenerationConfig name -> the type of its value, in words."""
_FLOATS = ("a number from 0 to 1", "a number above 0", "a finite number")
_SWITCH = "true or false"
_TOKENS = "a token or a list of tokens"
_FILE = "generation_config.json"
"""Where the model's own values are, for errors."""
_SAMPLING_ONLY = ("temperature", "top_k", *_TABLE["types"]["a number from 0 to 1"])
_BEAMS_ONLY = ("length_penalty", "early_stopping")

_HOW = "Quote a prompt that has spaces, and write --prompt before each"
REFUSED = {name: instead for instead, names in _TABLE["refused"].items() for name in names}
"""GenerationConfig name that zerokit refuses -> what to do instead."""
_TRIED: WeakKeyDictionary[PreTrainedTokenizerBase, set[tuple[str, int]]] = WeakKeyDictionary()
"""Options that a trial has accepted with a tokenizer: a training run generates with the same ones again and again."""


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


_NOTHING = Sampling({}, {})


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
    names = known_names() if words else []  # which imports transformers
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
    expected = _TYPES.get(name)
    value = True if given.text is None and expected == _SWITCH else given.value()
    if name == "stop_strings" and (not given.text or "" in (value if isinstance(value, list) else [value])):
        raise ConfigError("a stop string is empty", where=given.option, hint="Write the text that ends a completion")
    if value is None:
        return None
    if expected is not None and not _is_of_type(value, expected):
        raise ConfigError(f"expected {expected}, found '{given.text}'", where=given.option, hint="Change the value")
    return float(value) if expected in _FLOATS else value


def _is_of_type(value: Any, expected: str) -> bool:
    if isinstance(value, bool) or expected == _SWITCH:
        return isinstance(value, bool) and expected == _SWITCH
    match expected:
        case "a whole number from 1":
            return isinstance(value, int) and value >= 1
        case "a whole number from 0":
            return isinstance(value, int) and value >= 0
        case "a number from 0 to 1":
            return isinstance(value, int | float) and 0 <= value <= 1
        case "a number above 0":
            return isinstance(value, int | float) and 0 < value < float("inf")
    return isinstance(value, int | float) and abs(value) < float("inf")


def settle_sampling(sampling: Sampling, model: ModelFiles) -> GenerationConfig:
    """The model's own settings with the command line's on top, and defaults.

    End-of-text and padding tokens default to the tokenizer's. Without a padding token that the model knows,
    the first end-of-text token pads.

    Raises:
        ConfigError: values that transformers refuses, tokens that the model lacks, or options without effect.
    """
    _check_tokens(sampling, model.vocab_size)
    config = _merge(sampling, model)
    if config.max_new_tokens is None:
        config.max_new_tokens = DEFAULT_MAX_NEW_TOKENS
    if (least := sampling.values.get("min_new_tokens", 0)) > config.max_new_tokens:
        raise ConfigError(
            f"is {least}, and max_new_tokens is {config.max_new_tokens}",
            where=sampling.where("min_new_tokens"),
            hint="Lower it, or raise max_new_tokens",
        )
    start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
    if model.config.is_encoder_decoder and not isinstance(start, int):
        raise ConfigError(
            f"decoder_start_token_id, with which completions begin, is {json.dumps(start, default=repr)}",
            where=_FILE,
            hint="Write the decoder's first token there",
        )
    if config.eos_token_id is None:
        config.eos_token_id = model.tokenizer.eos_token_id
    pads = (config.pad_token_id, model.tokenizer.pad_token_id, min(end_tokens(config), default=0))
    # Tokenizers come with a padding token for which the model has no embedding, configs with -1.
    config.pad_token_id = next((pad for pad in pads if pad is not None and 0 <= pad < model.vocab_size), 0)
    if config.disable_compile is None:
        config.disable_compile = True  # a compiled forward pass would skip the hooks that gather parameters
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

    values = {**config.to_dict(), "max_new_tokens": 2, "min_new_tokens": None}
    for name in ("num_beams", "num_return_sequences"):  # few rows
        values[name] = 1 if values.get(name) is None else min(values[name], 2)
    options, tried = (repr(values), model.vocab_size), _TRIED.setdefault(model.tokenizer, set())
    if options in tried:
        return
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
    trial = GenerationConfig.from_dict(values)
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
        raise _refused(sampling, error, model) from error
    tried.add(options)


def _check_tokens(sampling: Sampling, vocab_size: int) -> None:
    for name in _TABLE["tokens"]:
        value = sampling.values.get(name)
        if value is not None and not _are_tokens(value):
            found = f"expected {_TOKENS}, found {json.dumps(value)}"
            raise ConfigError(found, where=sampling.where(name), hint="Change the value")
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not 0 <= token < vocab_size:
                raise ConfigError(
                    f"the model has no token {token}",
                    where=sampling.where(name),
                    hint=f"Its tokens are 0 to {vocab_size - 1}",
                )


def _merge(sampling: Sampling, model: ModelFiles) -> GenerationConfig:
    from transformers import GenerationConfig

    # A model may come with guidance, say, which would make a rank run the model while others do not.
    kept = "decoder_start_token_id"
    own = {name: value for name, value in model.defaults.to_dict().items() if name not in REFUSED or name == kept}
    unused = () if {**own, **sampling.values}.get("do_sample") else _SAMPLING_ONLY
    checked = {name: _of_model(name, own[name]) for name in own.keys() - sampling.values.keys() - {*unused}}
    values = {**own, **checked, **sampling.values}
    _check_effect(sampling, values)  # before transformers, which prints a warning
    try:
        return GenerationConfig.from_dict(values)
    except Exception as error:
        # The config's own checks raise ValueError, and TypeError on values they did not expect.
        raise _refused(sampling, error, model) from error


def _of_model(name: str, value: Any) -> Any:
    """A value of the model, as the code here expects it. ConfigError if it has another type."""
    expected = _TYPES.get(name, _TOKENS if name in _TABLE["tokens"] else None)
    if value is None or expected is None:
        return value
    is_whole = expected.startswith("a whole")
    if is_whole and isinstance(value, float) and value.is_integer():
        return int(value)
    is_right = isinstance(value, int if is_whole else int | float) and isinstance(value, bool) == (expected == _SWITCH)
    if not (_are_tokens(value) if expected == _TOKENS else is_right):
        found = f"{name} is {json.dumps(value, default=repr)}, not {expected}"
        raise ConfigError(found, where=_FILE, hint="Correct or remove it")
    return value


def _are_tokens(value: Any) -> bool:
    return all(type(token) is int for token in (value if isinstance(value, list) else [value]))


def _refused(sampling: Sampling, error: Exception, model: ModelFiles) -> ConfigError:
    text = " ".join(str(error).split()) or type(error).__name__
    found = {name: re.search(rf"\b{name}\b", text) for name in sampling.values}
    named = sorted((match.start(), name) for name, match in found.items() if match)
    options = [sampling.where(named[0][1])] if named else list(sampling.written.values())
    reason = re.split(r"(?<=[.!])\s", text, maxsplit=1)[0]
    refused = ConfigError(
        f"transformers refuses it: {reason}", where=" ".join(options) or _FILE, hint="Change the value"
    )
    if sampling.values:
        try:
            try_sampling(_NOTHING, settle_sampling(_NOTHING, model), model)
        except ConfigError as own:  # the model's values alone
            return own if own.message == refused.message else refused
    return refused


def _check_effect(sampling: Sampling, values: Mapping[str, Any]) -> None:
    """Refuse options that transformers would ignore."""
    for names, is_on, fix in (
        (_SAMPLING_ONLY, values.get("do_sample") is True, "Add --do_sample true"),
        (_BEAMS_ONLY, (values.get("num_beams") or 1) > 1, "Add --num_beams 4"),
    ):
        given = [name for name in names if name in sampling.values]
        if given and not is_on:
            raise ConfigError("would have no effect", where=sampling.where(given[0]), hint=fix)


def looks_at_tokens(processor: Any) -> bool:
    """Whether a logits processor looks at more than each row's scores, as far as is known."""
    return type(processor).__name__ not in _TABLE["score_processors"]


def completion_key(seed: int, index: int, number: int) -> int:
    """A 32-bit number, with sign, that seeds the samples of completion `number` of prompt `index`."""
    digest = hashlib.blake2b(struct.pack("<Qqq", seed % 2**64, index, number), digest_size=4).digest()
    return int(struct.unpack("<i", digest)[0])


def draw_tokens(scores: torch.Tensor, keys: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Draw a token of each row with the probabilities softmax(scores).

    By the Gumbel-max trick: the largest of score + noise, where a token's noise depends only on its number and
    on the row's key and step. So neither the batch nor the device matters, and rounding errors rarely do.

    Args:
        scores: float32, [rows, vocabulary].
        keys: int32, [rows], of :func:`completion_key`.
        steps: [rows], how many tokens a row has already.

    Returns:
        int64, [rows].
    """
    import torch

    tokens = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    rows = _mixed(keys + steps.to(torch.int32) * _GOLDEN)
    bits = (_mixed(rows[:, None] ^ _mixed(tokens)) >> 9) & 0x7FFFFF
    uniform = bits.float().add_(0.5).mul_(2.0**-23)  # neither 0 nor 1, which more bits would round to
    return scores.sub(uniform.log_().neg_().log_()).argmax(-1)


_GOLDEN = 0x9E3779B9 - 2**32
"""2**32 divided by the golden ratio, as int32: steps are far apart."""


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    """A hash of int32: "lowbias32" of https://nullprogram.com/blog/2018/07/31/ (public domain)."""
    bits = bits ^ ((bits >> 16) & 0xFFFF)
    bits = bits * 0x7FEB352D
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= 0x846CA68B - 2**32
    bits ^= (bits >> 16) & 0xFFFF
    return bits
