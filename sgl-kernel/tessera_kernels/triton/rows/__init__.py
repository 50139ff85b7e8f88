"""Kernels of `tessera_kernels.ops.rows`."""
