"""Definitions of the ops: types, the op itself, which launches its kernel on a GPU, and its reference in torch."""
