"""Kernels of the rows of a verification."""
