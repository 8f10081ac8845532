"""Reads the sources of CUDA extensions, and runs what they have for the host: nothing is compiled.

Of C++ as much is understood as wrappers of kernels are made of, with the types of its numbers: they
convert, round, wrap and divide as a compiler's do. What is not followed is refused by its line, and never
guessed at; so is what C++ leaves open, such as an overflow. Headers of torch and CUDA are not read: a
condition on a name that looks like theirs is refused, any other name is defined where the sources define
it. Kernels are launched and not run (launched_kernels).
"""
