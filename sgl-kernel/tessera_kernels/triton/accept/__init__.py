"""Kernels of acceptance."""
