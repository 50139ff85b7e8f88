"""How a server starts: our options, and SGLang's arguments with them."""
