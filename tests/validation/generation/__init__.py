"""Programs about generation."""
