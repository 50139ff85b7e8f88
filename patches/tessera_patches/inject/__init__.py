"""Vectors on their way into the prompt."""
