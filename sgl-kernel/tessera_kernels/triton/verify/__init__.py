"""Kernels of `tessera_kernels.ops.verify`."""
