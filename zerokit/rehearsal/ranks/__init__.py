"""What the ranks of one rehearsal exchange, and which of them are rehearsed."""
