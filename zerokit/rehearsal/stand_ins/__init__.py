"""Replacements for code that needs a GPU, a compiler or other ranks: same signatures, same allocations."""
