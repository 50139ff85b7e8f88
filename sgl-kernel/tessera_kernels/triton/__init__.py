"""The Triton kernels of the ops, and what they share."""
