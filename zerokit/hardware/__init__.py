"""Figures about GPUs and their software, as data."""
