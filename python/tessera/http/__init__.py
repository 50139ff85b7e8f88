"""Routes of our own on SGLang's HTTP application, free of SGLang."""
