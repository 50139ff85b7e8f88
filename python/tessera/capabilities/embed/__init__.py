"""Pooled embeddings of requests: what may be asked, how it is pooled, how it is answered, and their own routes."""
