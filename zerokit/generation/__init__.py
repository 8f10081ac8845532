"""Generation under ZeRO: prompts in, completions out, on any number of ranks, without a hang."""

CACHE_NAMES = ("past_key_values", "cache")
"""Arguments of transformers' models with the cache of keys and values: before release 5.24, and since."""
