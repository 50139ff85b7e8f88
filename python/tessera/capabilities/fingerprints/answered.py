"""Prompts followed by the answer whose fingerprints are verified."""

from typing import Any

from tessera import config
from tessera.capabilities.fingerprints.options import CLAIM_FIELD, OUTPUT_FIELD
from tessera.errors import BadRequest, Described
from tessera.http.body import token_ids


def append_output(field: str, prompt: Any, output_ids: Any, claim: object) -> tuple[Any, int]:
    """Prompt and response as one prompt, but for the last token, which was never fed back; and how many were added.

    Args:
        field: the prompt's name in the request.
        prompt: its token ids.
        output_ids: what was generated; None where the request has none.
        claim: the fingerprints to verify; None where it has none.

    Raises:
        BadRequest: generated ids without fingerprints, with a text, or that are none; fingerprints of many prompts.
    """
    if claim is not None and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        raise BadRequest(
            field, Described(f"{len(prompt)} prompts"), f"one prompt beside {CLAIM_FIELD}; /v1/toploc/verify takes many"
        )
    if output_ids is None:
        return prompt, 0
    if claim is None:
        raise BadRequest(OUTPUT_FIELD, output_ids, f"only with {CLAIM_FIELD}")
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], int):
        raise BadRequest(OUTPUT_FIELD, output_ids, f"only with {field} of one prompt, as token ids")
    vocabulary = config.active.vocabulary
    generated = token_ids(OUTPUT_FIELD, output_ids, vocabulary, least=0)[:-1]
    return token_ids(field, prompt, vocabulary) + generated, len(generated)
