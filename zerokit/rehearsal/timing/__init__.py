"""Virtual time: what operators, collectives and the host's own work cost, and what the script sees of it."""
