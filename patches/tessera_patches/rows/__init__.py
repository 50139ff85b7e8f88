"""The row store in SGLang's processes: sized, written, read, sent, answered, forgotten."""
