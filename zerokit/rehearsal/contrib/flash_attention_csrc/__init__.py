"""Extensions of flash-attn's csrc that are built one by one: rotary embeddings, norms with dropout, losses.

Owner: the maintainers of zerokit.
"""
