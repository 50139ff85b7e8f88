"""Triton kernels, in the families of `tessera_kernels.ops`, and what they share."""
