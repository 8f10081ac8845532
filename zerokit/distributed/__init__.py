"""Ranks: who this process is, and how all of them agree on an error before anyone leaves.

``ranks`` reads the launcher's environment; ``group`` opens the process group and runs the phases of
a command on every rank together.
"""
