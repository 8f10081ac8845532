"""The virtual device in C++, built once for each torch, and its face in Python."""
