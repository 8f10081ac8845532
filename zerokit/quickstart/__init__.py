"""The main job end to end on this machine: train a small model, fine-tune it, generate from it."""
