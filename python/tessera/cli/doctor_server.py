"""``tessera doctor --url URL``: what a running server says of itself, judged."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from tessera import __version__

SAFE_STARLETTE = (1, 0, 1)
"""Below it, a crafted Host header passes SGLang's API-key check (CVE-2026-48710)."""
FEATURES = {
    "rows": ("embeddings, hidden states, fingerprints on request", "--enable-return-hidden-states"),
    "fingerprints": ("on every response", "--toploc-verification"),
    "inject": ("vectors into prompts", "--enable-injection"),
    "tilespec": ("speculative decoding that sizes itself", "--tile-spec"),
}
"""What a server's options switch on, by its name in ``/server_info``."""
_ENDED, _ANSWERED = "._maybe_collect_routed_experts", "TokenizerManager._handle_batch_output"
"""Ends of the seams that every request reaches when it ends (with rows), and when its answer arrives."""
_REACHES_ALL = "an answer of two tokens reaches all"
_SECONDS = 30


class Check(NamedTuple):
    """One line of the report."""

    fine: bool
    subject: str
    detail: str


def checks(url: str, api_key: str | None) -> Iterator[Check]:
    """A line for each question; the first that is not fine may be the last."""
    try:
        info = _server_info(url, api_key)
    except urllib.error.HTTPError as error:
        advice = "; give its key by --api-key" if error.code == HTTPStatus.UNAUTHORIZED else ""
        yield Check(False, "server", f"{url}/server_info answers HTTP {error.code}{advice}")
        return
    except (OSError, ValueError) as error:
        yield Check(False, "server", f"no SGLang server answers at {url}: {error}")
        return
    yield Check(True, "server", f"{info.get('model_path', 'a model')} at {url}")
    ours = info.get("tessera")
    if ours is None:
        yield Check(False, "tessera", "this server runs without the plugin, or with TESSERA_DISABLE=1")
        return
    if "calls" not in ours:
        yield Check(False, "tessera", f"{ours.get('version')} is too old to say more; here is {__version__}")
        return
    yield from _versions(ours["versions"])
    yield from _options(ours)
    yield from _seams(ours)
    yield from _memory(ours)


def package(name: str, version: str) -> Check:
    """An installed package; BAD is a starlette with which SGLang's API-key check cannot be relied on."""
    parts = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if name == "starlette" and parts < SAFE_STARLETTE:
        return Check(False, name, f"{version}: CVE-2026-48710; run: pip install 'starlette>=1.0.1'")
    return Check(True, name, version)


def _server_info(url: str, api_key: str | None) -> dict[str, Any]:
    if not url.startswith(("http://", "https://")):
        raise ValueError("a URL begins with http:// or https://")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/server_info", headers=headers)  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310 - the same
        found = json.load(response)
    if not isinstance(found, dict):
        raise TypeError(f"/server_info is {type(found).__name__}, not an object")
    return found


def _versions(versions: Mapping[str, str]) -> Iterator[Check]:
    for name, version in versions.items():
        if name == "tessera" and version != __version__:
            yield Check(True, name, f"{version}; this command is of {__version__}")
        else:
            yield package(name, version)


def _options(ours: Mapping[str, Any]) -> Iterator[Check]:
    on = ours["on"]
    for name, (what, option) in FEATURES.items():
        yield Check(True, name, f"{what}: on" if name in on else f"{what}: off without {option}")
    if others := [name for name in on if name not in FEATURES]:
        yield Check(True, "also on", ", ".join(others))
    given = [name if value is True else f"{name} {value}" for name, value in ours["options"].items()]
    yield Check(True, "options", " ".join(given) or "none of the plugin's")


def _seams(ours: Mapping[str, Any]) -> Iterator[Check]:
    each = {process: len(targets) for process, targets in ours["seams"].items()}
    yield Check(True, "seams", ", ".join(f"{count} in the {process} process" for process, count in each.items()))
    if not any(name in ours["on"] for name in FEATURES):
        return
    counts, complete = ours["calls"]["counts"], ours["calls"]["complete"]
    silent = [target for target, count in counts.items() if not count]
    ran = f"{len(counts) - len(silent)} of {len(counts)} that every server reaches ran"
    if not complete:
        lost = _count(counts, _ENDED) > 0 and not _count(counts, _ANSWERED)
        advice = f"requests ended, and SGLang did not call our hook on {_ANSWERED}" if lost else _REACHES_ALL
        yield Check(not lost, "calls", f"{ran}; {advice}")
        return
    yield Check(not silent, "calls", ran)
    yield from (Check(count > 0, f"{count} calls", target) for target, count in counts.items())
    demanded = ours["calls"].get("on_demand", {})
    yield from (Check(True, f"{count} calls", f"{target}, on demand") for target, count in demanded.items())


def _count(counts: Mapping[str, int], end: str) -> int:
    return sum(count for target, count in counts.items() if target.endswith(end))


def _memory(ours: Mapping[str, Any]) -> Iterator[Check]:
    if "rows" not in ours["on"]:
        return
    if not ours["row_stores"]:
        yield Check(False, "row store", "no scheduler has said how large it is")
    for store in ours["row_stores"]:
        share = store["share_of_kv_cache"]
        beside = "" if share is None else f", {100 * share:.1f} % of the KV cache's bytes"
        on_host = f", {store['host_bytes'] / 2**20:.1f} MiB on the host" if store.get("host_bytes") else ""
        where = f"replica {store['replica']}: " if len(ours["row_stores"]) > 1 else ""
        yield Check(
            True, "row store", f"{where}{store['bytes'] / 2**20:.1f} MiB, {store['slots']} slots{beside}{on_host}"
        )
