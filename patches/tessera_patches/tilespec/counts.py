"""Counts of verified drafts in ``meta_info``. Main process. SGLang counts as if each draft had the full length."""

from typing import Any

_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts")


def count_drafts(_: None, manager: Any, meta_info: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    """AFTER ``TokenizerManager._calculate_spec_decoding_metrics``: counts verified tokens.

    Steps without a draft verify one token. SGLang's histogram does not have them.
    """
    steps = meta_info.get("spec_verify_ct")
    if not steps:
        return
    verified = [*meta_info.get("spec_cap_lens_histogram", [])]
    verified += [0] * (2 - len(verified))
    verified[1] += max(steps - sum(verified), 0)
    tokens = sum(width * times for width, times in enumerate(verified))
    proposed = tokens - sum(verified)  # all but each step's anchor
    meta_info["spec_cap_lens_histogram"] = verified
    meta_info["spec_cap_length"] = tokens / steps
    meta_info["spec_accept_rate"] = meta_info["spec_num_correct_drafts"] / proposed if proposed else 0.0
    meta_info.update((name, proposed) for name in _PROPOSED if name in meta_info)
