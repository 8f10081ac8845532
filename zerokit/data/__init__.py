"""Text to train on that every machine has: no download, no licence to agree to."""
