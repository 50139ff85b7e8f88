"""Cost profiles on disk: found by everything that changes costs, written in one step, never trusted when damaged.

A profile is ``tilespec/KEY.json`` in ``$TESSERA_CACHE``, or in the user's cache folder (``~/.cache/tessera``). KEY is
the SHA-256 of the facts about the server (versions, GPU, model, options: the caller collects them) as canonical JSON.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.limits import MAX_PROFILE_BYTES
from tessera.tilespec.calibration import Calibration, Calibrations, Traffic
from tessera.tilespec.costs import CostTable
from tessera_kernels import private_cache

SCHEMA = 4
SPOT_TOLERANCE = 0.10
"""How far a spot measurement may be from the profile."""
_VARIABLE = "TESSERA_CACHE"


class ProfileUnusable(Exception):
    """A file is there but must not be used; the message says why. Report it and profile again."""


@dataclass(frozen=True)
class Profile:
    """What the cache keeps of one server.

    Attributes:
        facts: what the key is made of.
        costs: the profile.
        calibrations: for a warm start.
    """

    facts: Mapping[str, Any]
    costs: CostTable
    calibrations: Calibrations

    @property
    def key(self) -> str:
        """The name of its file: a hash of the facts."""
        return key(self.facts)


def key(facts: Mapping[str, Any]) -> str:
    """64 hexadecimal digits for JSON values by name; their order does not matter.

    Raises:
        TypeError: a value has no JSON form, so two different ones might look alike.
        ValueError: a value is not a finite number.
    """
    return hashlib.sha256(_canonical(facts)).hexdigest()


def folders() -> Iterator[Path]:
    """Where profiles may lie, the preferred place first."""
    configured = os.environ.get(_VARIABLE)
    if configured:
        yield Path(configured).absolute() / "tilespec"
    else:
        for root in private_cache.roots():
            yield root / "tilespec"


def profiles() -> list[Path]:
    """Every profile on this machine, the newest first."""
    found = [path for folder in folders() if folder.is_dir() for path in folder.glob("*.json")]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def save(profile: Profile) -> Path:
    """Write a profile in one step and return where it is.

    Raises:
        OSError: no folder is fit: not writable, or others could change what is in it.
    """
    body = {
        "facts": dict(profile.facts),
        "costs": profile.costs.to_json(),
        "calibrations": [one.to_json() for one in profile.calibrations],
    }
    checksum = hashlib.sha256(_canonical(body)).hexdigest()
    content = json.dumps({"schema": SCHEMA, "sha256": checksum, **body}, indent=1).encode()
    failures = []
    for folder in folders():
        file = folder / f"{profile.key}.json"
        try:
            private_cache.write(file, content, mode=0o600)
        except OSError as error:
            failures.append(f"{folder}: {error}")
        else:
            return file
    raise OSError(f"cannot keep the cost profile: set {_VARIABLE} to a folder of your own. Tried {'; '.join(failures)}")


def load(facts: Mapping[str, Any]) -> Profile | None:
    """The profile for these facts; None if there is none.

    Raises:
        ProfileUnusable: there is one, but it is damaged, of another schema, or somebody else could have written it.
    """
    name = f"{key(facts)}.json"
    for folder in folders():
        file = folder / name
        if file.is_file():
            try:
                private_cache.check_private(folder)
            except OSError as error:
                raise ProfileUnusable(f"{file}: {error}") from error
            profile = read(file)
            if profile.key != file.stem:
                raise ProfileUnusable(f"{file}: it is the profile of another server")
            return profile
    return None


def read(file: Path) -> Profile:
    """Read a file as `save` wrote it.

    Raises:
        ProfileUnusable: it is something else.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_PROFILE_BYTES + 1)
        if len(content) > MAX_PROFILE_BYTES:
            raise ProfileUnusable(f"{file}: larger than {MAX_PROFILE_BYTES:,} bytes")
        return _parse(json.loads(content))
    except OSError as error:
        raise ProfileUnusable(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileUnusable(f"{file}: {error}") from error


def spot_check(profiled: Sequence[float], measured: Sequence[float]) -> str:
    """Why a profile is stale, by a few steps measured again; empty if it is not.

    Args:
        profiled: seconds by the profile.
        measured: seconds now, for the same steps.
    """
    for before, now in zip(profiled, measured, strict=True):
        if not abs(now / before - 1) <= SPOT_TOLERANCE:
            return f"a step that took {before * 1e3:.3f} ms takes {now * 1e3:.3f} ms now"
    return ""


def _parse(content: object) -> Profile:
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"not a profile of schema {SCHEMA}")
    body = {name: content.get(name) for name in ("facts", "costs", "calibrations")}
    if content.get("sha256") != hashlib.sha256(_canonical(body)).hexdigest():
        raise ValueError("damaged: the checksum is another")
    if not isinstance(body["facts"], dict):
        raise ValueError("the facts are not an object")  # noqa: TRY004 - wrong content, not a wrong call
    costs = CostTable.from_json(body["costs"])
    trees = body["facts"].get("topk", 1) > 1
    known = body["calibrations"]
    if not isinstance(known, list) or len(known) != len(Traffic):
        raise ValueError("there is not one calibration for each kind of traffic")
    greedy, sampled = (Calibration.from_json(one, max(costs.steps), trees=trees) for one in known)
    return Profile(body["facts"], costs, (greedy, sampled))


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
