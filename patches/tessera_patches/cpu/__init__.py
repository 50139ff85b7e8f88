"""Operators that SGLang's CPU engine lacks."""
