"""Best-first search with one server for both jobs: it proposes the next lines, and embeds the states to be valued.

    SGLANG_URL=http://127.0.0.1:30000 python examples/best_first_search/search.py

Without SGLANG_URL the tiny model of this repository is loaded into this process instead. Each step takes the 8 best
states of the frontier, asks for 8 continuations of each in one request, throws out what the checker refuses, embeds
what is left in a second request, and puts it back with a value. See `problem.py` and `value.py` beside this file.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from problem import State, next_line, refused, solved
from tessera.client import Inference, connect
from value import ValueHead, embed

TINY = Path(__file__).resolve().parents[2] / "tests/support/models/tiny"
"""The tiny model of this repository."""
PROBLEMS = (
    'def count_words(text):\n    """Return how often each word is in a text."""',
    'def find_index(items, value):\n    """Return the index of a value in a list."""',
    'def join_path(path, name):\n    """Return the path of a file in a folder."""',
)
WIDTH = 8
"""States that are expanded in one step, and continuations that each gets."""
LIKELY = 0.1
"""What one unit of log-probability for each line is worth, in missing lines."""
AGAIN = 1.0
"""What a state that was expanded loses before it is expanded again, with other samples, in missing lines."""


@dataclass
class Search:
    """One search.

    Args:
        client: proposes and embeds.
        head: values.
        least_lines: of a solution.
    """

    client: Inference
    head: ValueHead
    least_lines: int = 4
    expanded: int = 0
    proposed: int = 0
    refused: int = 0
    _frontier: list[tuple[float, int, State]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=itertools.count)

    def solve(self, header: str, most_steps: int) -> State | None:
        """The first function that the checker accepts as complete; None if there is none after so many steps."""
        self._frontier = [(0.0, next(self._order), State(header))]
        seen = {header}
        for _ in range(most_steps):
            best = [heapq.heappop(self._frontier) for _ in range(min(WIDTH, len(self._frontier)))]
            fresh = [state for state in self._proposals([state for *_, state in best]) if state.code not in seen]
            seen |= {state.code for state in fresh}
            for state in fresh:
                if solved(state, least_lines=self.least_lines):
                    return state
            self._push(fresh)
            for cost, _, state in best:
                heapq.heappush(self._frontier, (cost + AGAIN, next(self._order), state))
        return None

    def _proposals(self, states: list[State]) -> Iterator[State]:
        prompts = [state.code for state in states]
        groups = self.client.generate_candidates_batch(
            prompts, WIDTH, extract=next_line, temperature=0.8, top_p=0.95, max_new_tokens=32
        )
        self.expanded += len(states)
        for state, group in zip(states, groups, strict=True):
            for candidate in group:
                self.proposed += 1
                proposal = state.after(candidate.text, candidate.log_prob)
                if refused(proposal):
                    self.refused += 1
                else:
                    yield proposal

    def _push(self, states: list[State]) -> None:
        if not states:
            return
        missing = self.head.missing(embed(self.client, [state.code for state in states]))
        for state, lines in zip(states, missing, strict=True):
            cost = float(lines) - LIKELY * state.log_prob / len(state.lines)
            heapq.heappush(self._frontier, (cost, next(self._order), state))


def main() -> int:
    """Learn the head, solve all problems, show what came of it; 0 if all are solved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="at most so many for each problem (default 40)")
    parser.add_argument("--examples", type=int, default=400, help="that the value head learns from (default 400)")
    parser.add_argument("--problems", type=int, default=len(PROBLEMS), help="solve only the first so many")
    options = parser.parse_args()
    with connect(os.environ.get("SGLANG_URL", str(TINY))) as client:
        print(f"one server for both jobs: {client.server_info().engine}")
        head, correlation = ValueHead.learned(client, options.examples)
        print(f"value head: correlation with the truth on held-out functions {correlation:.2f}\n")
        unsolved = sum(
            not _shown(Search(client, head), header, options.steps) for header in PROBLEMS[: options.problems]
        )
    print("all solved" if not unsolved else f"{unsolved} not solved")
    return 1 if unsolved or correlation <= 0 else 0


def _shown(search: Search, header: str, steps: int) -> bool:
    begin = time.perf_counter()
    found = search.solve(header, steps)
    seconds = time.perf_counter() - begin
    print(found.code if found else f"{header}\n    ... not solved")
    print(
        f"# {search.expanded} states expanded, {search.proposed} lines proposed, {search.refused} refused, "
        f"{seconds:.1f} s\n"
    )
    return found is not None


if __name__ == "__main__":
    sys.exit(main())
