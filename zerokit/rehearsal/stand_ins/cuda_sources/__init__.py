"""Reads the sources of CUDA extensions, and runs what they have for the host: nothing is compiled.

Of C++ as much is understood as wrappers of kernels are made of. What is not is refused by its line, and never
guessed at. Kernels are launched and not run (launched_kernels).
"""
