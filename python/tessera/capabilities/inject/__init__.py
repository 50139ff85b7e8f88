"""Activation injection: vectors of a request that take the place of, or are added to, embeddings of its tokens."""
