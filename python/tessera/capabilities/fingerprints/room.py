"""How many tokens a claim may have: as many as a response of this server can have, which is more than a prompt can.

SGLang keeps the last tokens of a context for an answer: a longer prompt is refused, or cut (--allow-auto-truncate). A
claim has no answer to come, and one that is cut would prove other rows.
"""

from typing import NamedTuple, Self

_RESERVED_TOKENS = 5
"""Tokens that SGLang keeps for an answer (``TpModelWorker.get_worker_info``)."""


class VerifyRoom(NamedTuple):
    """What the engine has room for.

    Attributes:
        prompt: from so many tokens on a prompt that is to be answered is refused, or cut to them.
        pool: KV slots.
        page: slots that are given out together.
    """

    prompt: int
    pool: int
    page: int

    @classmethod
    def of(cls, scheduler: dict[str, int], page: int) -> Self:
        """Args: what a scheduler says of itself once it is ready, and ``--page-size``."""
        return cls(scheduler["max_req_input_len"], scheduler["max_total_num_tokens"], page)

    @property
    def rows(self) -> int:
        """The most rows of a response: N+M-1, with N+M below SGLang's longest request.

        A prefill of as many needs a page beside its own, or it would wait for ever.
        """
        return min(self.prompt + _RESERVED_TOKENS - 2, self.pool - self.page - 1)

    def refusal(self, rows: int) -> str:
        """Why a claim with so many rows cannot be run; "" where it can."""
        if rows <= self.rows:
            return ""
        return f"the claim has {rows} tokens to run, and the context of this server has room for {self.rows}"

    def regeneration_refusal(self, prompt: int, output: int) -> str:
        """Why a response cannot be generated again; "" where it can. SGLang would cut either end of it."""
        longest = min(self.prompt, self.rows)
        if prompt > longest:
            return f"the prompt has {prompt} tokens, and this server answers prompts of at most {longest}"
        pages = -(-prompt // self.page) * self.page
        most = max(0, min(self.prompt + _RESERVED_TOKENS - 1 - prompt, self.pool - self.page - 1 - pages))
        if output <= most:
            return ""
        return f"the response has {output} tokens, and the context of this server has room for {most} after its prompt"
