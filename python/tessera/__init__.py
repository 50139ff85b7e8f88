"""Tessera: exact embeddings, hidden states and more from a stock SGLang server, without forking it."""

__version__ = "0.2.0"
