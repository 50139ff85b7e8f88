"""The row store: last-layer hidden states, kept where their KV is."""
