"""Attributes of SGLang's objects that versions name or reach differently: each is named here, once.

Here belong, under whatever name: a request's row, its committed tokens, cached slots and their key, ranks, options as
SGLang resolved them, the model's configuration, attention backends, and pools. Other fields of what SGLang hands to a
hook, the hook reads itself: ``batch.reqs``, ``req.sampling_params``.

Functions annotate their arguments, and variables whose attributes they read, with SGLang's classes. From these
annotations ``tests/contract/test_engine.py`` derives which attribute of which class is read, and looks for it in the
installed SGLang. ``tests/unit/test_engine.py`` keeps the attributes out of all other modules;
``tests/contract/test_hook_reads.py`` also looks for what hooks read themselves. Where versions differ, a module defines
the function for each and chooses when it is imported: by what SGLang has, not by its version number.
"""
