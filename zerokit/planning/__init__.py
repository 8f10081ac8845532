"""What to rent for a training run: which GPUs, how many, how long, how much.

Importing this package imports neither torch nor transformers nor DeepSpeed.
"""
