"""The byte-level BPE vocabulary that both models share, and its tokenizer files."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
IM_START, IM_END = "<|im_start|>", "<|im_end|>"
#: Their places here are their token ids.
SPECIAL_TOKENS = [BOS, EOS, PAD, IM_START, IM_END]
BOS_ID, EOS_ID, PAD_ID, IM_START_ID, IM_END_ID = range(len(SPECIAL_TOKENS))

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def train_tokenizer(texts: list[str], size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of `size` tokens, special tokens and bytes included.

    No text is ever unknown: all 256 bytes are tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make: Any = trainers.BpeTrainer  # without types in later versions
    trainer = make(
        vocab_size=size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def document(text: str) -> str:
    """A whole file as the models see it."""
    return f"{BOS}{text}{EOS}"


def tokenizer_config(context: int) -> dict[str, Any]:
    """`tokenizer_config.json` for a model of `context` positions.

    The tokenizer adds no token by itself: the text's tokens are the prompt's tokens.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "additional_special_tokens": [IM_START, IM_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }


def write_tokenizer(folder: Path, tokenizer: Tokenizer, context: int) -> None:
    """Write `tokenizer.json` (compact: the size limit counts) and its config."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = json.dumps(tokenizer_config(context), indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(settings, encoding="utf-8")
