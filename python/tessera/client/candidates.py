"""From the flat answers of prompts x n to the candidates of each prompt."""

from collections.abc import Sequence

from tessera.client.extract import Extract
from tessera.client.results import Candidate, Generation


def group_candidates(generations: Sequence[Generation], n: int, extract: Extract) -> list[list[Candidate]]:
    """Candidates of each prompt, best first.

    Args:
        generations: n of the first prompt, n of the second, and so on.
        n: how many each prompt has.
        extract: from a generated text to the candidate in it.
    """
    return [rank_candidates(generations[i : i + n], extract) for i in range(0, len(generations), n)]


def rank_candidates(generations: Sequence[Generation], extract: Extract) -> list[Candidate]:
    """Candidates of one prompt: each text once, the greatest log-probability first; equal ones in order of text."""
    best: dict[str, Candidate] = {}
    for generation in generations:
        text = extract(generation.text)
        log_prob = generation.log_prob
        if not text or log_prob is None:
            continue
        if text not in best or log_prob > best[text].log_prob:
            best[text] = Candidate(text, log_prob, generation.output_ids, generation.finish_reason, generation.text)
    return sorted(best.values(), key=lambda candidate: (-candidate.log_prob, candidate.text))
