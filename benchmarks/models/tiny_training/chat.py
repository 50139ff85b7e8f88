"""Chat examples made from the corpus: a docstring asks, its function answers."""

import ast
import hashlib
import textwrap
from collections.abc import Iterator

from tiny_training.vocabulary import IM_END, IM_START

#: Longer functions would crowd the rest of the exchange out of a training window.
MOST_LINES = 40


def chat_text(question: str, answer: str) -> str:
    """One exchange, exactly as the chat template renders it."""
    return f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n"


def chat_documents(texts: list[str], at_most: int) -> list[str]:
    """At most `at_most` exchanges from the functions that have a docstring.

    The choice is by hash, so that it is spread over the corpus and always the same.
    """
    found = {pair for text in texts for pair in _pairs(text)}
    ranked = sorted(found, key=lambda pair: hashlib.sha256(pair[1].encode()).digest())
    return [chat_text(question, answer) for question, answer in ranked[:at_most]]


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        purpose = (ast.get_docstring(node) or "").partition("\n")[0].strip()
        source = ast.get_source_segment(text, node, padded=True)
        if purpose and source and source.count("\n") < MOST_LINES:
            yield f"Write {node.name}: {purpose}", textwrap.dedent(source).strip()
