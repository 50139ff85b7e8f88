"""A Python that has imported the engine once, and the processes of servers that are forked from it.

Three of a server's processes import SGLang, torch and transformers, which takes more than anything that they do then.
Here one process imports them, with no plugin loaded and no options read, and becomes each of the others by a fork:
SGLang's launcher, and what the launcher starts by multiprocessing's ``spawn``. Parents, sessions, exit codes, logs and
descriptors are those of processes that were started by ``exec``.
"""
