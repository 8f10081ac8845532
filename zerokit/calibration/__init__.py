"""Measures the costs of a training step on this machine, and writes them as a file for `--hardware`."""
