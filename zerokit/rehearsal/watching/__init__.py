"""What a rehearsal follows of a run, and what it changes in it."""
