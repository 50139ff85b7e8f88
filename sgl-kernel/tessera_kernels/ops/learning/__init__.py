"""What acceptance teaches: the acceptance model and its updates."""
