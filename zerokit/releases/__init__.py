"""DeepSpeed's releases: which keys each of them reads, and how. Facts without torch or DeepSpeed."""
