"""Attributes of SGLang's objects that versions name or reach differently: each is named here, once.

Functions annotate their arguments, and variables whose attributes they read, with SGLang's classes. From these
annotations ``tests/contract/test_engine.py`` derives which attribute of which class is read, and looks for it in the
installed SGLang. ``tests/unit/test_engine.py`` keeps the attributes out of all other modules. Where versions differ, a
module defines the function for each and chooses when it is imported: by what SGLang has, not by its version number.
"""
