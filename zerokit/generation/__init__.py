"""Generation under ZeRO: prompts in, completions out, on any number of ranks, without a hang."""
