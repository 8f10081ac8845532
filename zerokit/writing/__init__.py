"""A ds_config written from a few decisions, with the reason for each key."""
