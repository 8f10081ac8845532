"""One file per family of architectures; each lists its model types in `MODEL_TYPES`."""
