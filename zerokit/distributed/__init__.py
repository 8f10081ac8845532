"""Ranks: who this process is, and how all of them agree on an error before any of them leaves."""
