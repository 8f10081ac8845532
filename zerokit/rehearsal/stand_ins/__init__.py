"""What stands in for code that needs a GPU, a compiler or other ranks: same signatures and allocations."""
