"""Kernels of `tessera_kernels.ops.learning`."""
