"""Every process that a server started, found in /proc, so that none of them outlives it.

A process group is not enough: SGLang's main process may end first and leave the detokenizer behind, and a library may
put its helper into a session of its own. A member is what shares the leader's session or descends from a member.
"""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_POLL_SECONDS = 0.05


class _Stat(NamedTuple):
    """The fields of /proc/PID/stat that tell who belongs to whom."""

    parent: int
    session: int
    started: int
    dead: bool


class ProcessFamily:
    """The leader of a session and all that came from it.

    Args:
        leader: process id of a process that was started in a new session.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        # The start time tells a member from a later process that was given the same id.
        self._members: dict[int, int] = {}
        self.refresh()

    def refresh(self) -> set[int]:
        """Look for new members and return the ids of those alive. Call it now and then while the leader lives."""
        table = _process_table()
        known = {pid: started for pid, started in self._members.items() if _is_same(table.get(pid), started)}
        if not self._leader_id_reused(table):
            known |= {pid: stat.started for pid, stat in table.items() if stat.session == self._leader}
        grew = True
        while grew:
            children = {pid: stat.started for pid, stat in table.items() if stat.parent in known and pid not in known}
            known |= children
            grew = bool(children)
        self._members |= known
        return {pid for pid in known if not table[pid].dead}

    def _leader_id_reused(self, table: dict[int, _Stat]) -> bool:
        first_seen = self._members.get(self._leader)
        return self._leader in table and first_seen not in (None, table[self._leader].started)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every living member; one that ends meanwhile is fine."""
        for pid in self.refresh():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def wait_gone(self, seconds: float) -> bool:
        """Wait until no member lives. Return whether that came true in time."""
        deadline = time.monotonic() + seconds
        while self.refresh():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def end(self, seconds: float) -> None:
        """SIGTERM, and SIGKILL for what still lives after ``seconds``.

        Raises:
            RuntimeError: a process survived SIGKILL for as long.
        """
        self.signal(signal.SIGTERM)
        if not self.wait_gone(seconds):
            self.signal(signal.SIGKILL)
            if not self.wait_gone(seconds):
                raise RuntimeError(f"processes {sorted(self.refresh())} of the server survived SIGKILL")


def _is_same(stat: _Stat | None, started: int) -> bool:
    return stat is not None and stat.started == started


def _process_table() -> dict[int, _Stat]:
    table = {}
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the reading
        # The command's name, in brackets, may itself hold brackets and spaces.
        fields = text[text.rindex(")") + 2 :].split()
        # A main thread may be gone before the others are, and until then ports and files stay open.
        dead = fields[0] in "ZX" and int(fields[17]) <= 1
        table[int(folder.name)] = _Stat(int(fields[1]), int(fields[3]), int(fields[19]), dead)
    return table
