"""Data about GPUs and their software."""

GPUS_PER_NODE = 8
"""Default of a cluster."""
