"""The playground: one page, put together from a document, a style and a script."""
