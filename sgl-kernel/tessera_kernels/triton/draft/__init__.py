"""Kernels of `tessera_kernels.ops.draft`."""
