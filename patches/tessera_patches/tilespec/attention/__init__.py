"""Attention backends with ragged drafts."""
