"""The bench rig of TileSpec: a trained pair with real acceptance, given the cost of an 8B model, and its measurements.

Run the scripts as modules, with `benchmarks/` and `benchmarks/models/` on PYTHONPATH; `tilespec/README.md` says how.
"""
