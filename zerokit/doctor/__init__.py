"""What is wrong with this machine, and with all machines of a run, before a run finds out."""
