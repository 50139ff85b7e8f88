"""Tessera: exact embeddings, hidden states and more from a stock SGLang server, without forking it."""

__version__ = "0.1.0"
