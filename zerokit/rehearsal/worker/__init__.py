"""The side of a rank: it runs the script and records what it does."""
