"""What this machine takes for the work of a training step, measured, as a file that `--hardware` takes."""
