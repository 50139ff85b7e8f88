"""TileSpec: how many draft tokens to verify, chosen in every step. Nothing here imports SGLang."""
