"""What training holds in memory, in closed form: model states, buffers, activations, and when."""
