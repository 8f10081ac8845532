"""What kernels, copies, collectives and launches cost, in seconds, by card."""
