"""The only way to attributes of SGLang's objects: what a version of SGLang names otherwise is said here, once."""
