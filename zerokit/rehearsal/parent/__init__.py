"""The side of the command: options, processes, advice."""
