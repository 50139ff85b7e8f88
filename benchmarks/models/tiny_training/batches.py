"""Token streams, and the windows of them that training sees."""

import torch
from tokenizers import Tokenizer
from torch import Tensor


def encode_documents(tokenizer: Tokenizer, documents: list[str]) -> Tensor:
    """All documents' token ids in one stream, int64 [tokens]."""
    encoded = tokenizer.encode_batch(documents, add_special_tokens=False)
    return torch.tensor([token for one in encoded for token in one.ids])


class Windows:
    """Draws seeded random windows of a token stream [tokens]."""

    def __init__(self, stream: Tensor, seed: int) -> None:
        """Keep the stream where it is; the offsets are drawn on the CPU.

        A CPU generator gives the same windows whatever the device.
        """
        self._stream = stream
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self, rows: int, length: int) -> Tensor:
        """`rows` windows of `length` tokens: int64 [rows, length]."""
        last = self._stream.numel() - length
        starts = torch.randint(last + 1, (rows, 1), generator=self._generator)
        places = (starts + torch.arange(length)).to(self._stream.device)
        return self._stream[places]
