"""Figures about GPUs and their software, as data."""

GPUS_PER_NODE = 8
"""Of a cluster of which nothing else is said."""
