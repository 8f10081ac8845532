"""Costs in seconds of kernels, copies, collectives and launches, by card."""
