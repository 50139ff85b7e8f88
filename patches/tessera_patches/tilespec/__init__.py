"""TileSpec in SGLang's speculative decoding."""
