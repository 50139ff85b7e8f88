"""Every place where Tessera touches SGLang. These modules carry data; the logic they call is in ``tessera``."""
