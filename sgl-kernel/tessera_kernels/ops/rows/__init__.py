"""Reads of the row store."""
