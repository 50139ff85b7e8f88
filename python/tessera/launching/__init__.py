"""Starts the stock SGLang launcher in a process of its own, and stops it again."""
