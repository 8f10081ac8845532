"""The tokenizer of a run: the model's own, another one, or one trained for it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from zerokit.checkpoint.pretrained import read_tokenizer
from zerokit.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"
MASK = "<|mask|>"
FAST = "take a model with a fast tokenizer (tokenizer.json)"


def load_tokenizer(
    source: str | Path, *, where: str, needs: str = "eos", trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a tokenizer from a Hub id or folder; one without a padding token pads with its end-of-text.

    Args:
        needs: the special token that the task needs: ``eos``, ``pad`` or ``mask``. ModelError if it is
            missing.
    """
    tokenizer = read_tokenizer(source, where=where, trust_remote_code=trust_remote_code)
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    if getattr(tokenizer, f"{needs}_token_id") is None:
        what = {"eos": "end-of-text", "pad": "padding", "mask": "mask"}[needs]
        raise ModelError(
            f"the tokenizer of '{source}' has no {what} token", where=where, hint=f"Set its {needs}_token"
        )
    return tokenizer


def check_maps_words(tokenizer: PreTrainedTokenizerBase, *, where: str, hint: str) -> None:
    """Refuse a slow tokenizer: only fast ones map tokens to words (ModelError)."""
    if not tokenizer.is_fast:
        raise ModelError(
            f"the tokenizer ({type(tokenizer).__name__}) does not map tokens to words", where=where, hint=hint
        )


def train_tokenizer(texts: Iterable[str], vocab_size: int, *, mask: bool = False) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE tokenizer with at most `vocab_size` entries; it decodes any text exactly."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, PADDING, *([MASK] if mask else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        **({"mask_token": MASK} if mask else {}),
    )
