"""Kernels of `tessera_kernels.ops.accept`."""
