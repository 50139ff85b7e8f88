"""What the scheduler process keeps for its seams: one row store, what reads it and what sends that, or none."""

from typing import Any
from weakref import WeakKeyDictionary

from tessera.delivery.outbox import Outbox
from tessera.rows.due import DueReads
from tessera.rows.generations import Generations
from tessera.rows.host import HostRows
from tessera.rows.service import RowService
from tessera.rows.store import RowStore

rows: RowStore | None = None
host_rows: HostRows | None = None
"""The rows of prefixes whose KV is in the host's memory; None where no such prefixes are kept."""
host_pool: Any = None
"""SGLang's host pool that they go with."""
generations = Generations()
sessions: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""For each session that keeps KV slots between turns, the generation of the weights that computed its first row."""
scheduler: Any = None
"""SGLang's ``Scheduler``, once a request came."""
service: RowService | None = None
outbox: Outbox | None = None
due: DueReads[Any] | None = None
"""SGLang's ``Req`` that run and of which something is read meanwhile."""
target_logits: frozenset[int] = frozenset()
"""Identities of the target model's logits processors; draft models have their own."""
