"""Checks of this machine, and of all machines of a run, before the run starts."""
