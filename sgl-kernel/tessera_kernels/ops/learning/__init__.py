"""The acceptance model and its updates."""
