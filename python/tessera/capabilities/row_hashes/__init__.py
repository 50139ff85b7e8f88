"""Exact mode: hashes of the rows themselves, for servers whose arithmetic is the same bit by bit."""
