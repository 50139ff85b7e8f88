"""Raw hidden states of requests: which rows may be asked for, and how they are answered."""
