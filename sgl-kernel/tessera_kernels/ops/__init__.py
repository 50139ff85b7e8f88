"""Definitions of the ops: what each takes and writes, its launch entry and its reference in torch."""
