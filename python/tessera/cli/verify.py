"""``tessera verify``: does a saved response come from the model that a server serves?"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tessera.capabilities.fingerprints.answer import FINGERPRINTS
from tessera.cli.connection import add_api_key
from tessera.installing import install

PASS, FAIL, UNVERIFIABLE = 0, 1, 2

_SECONDS = 600.0
"""A claim is a prefill, and a response may hold many."""

_EPILOG = """\
The response is the JSON that /generate, /v1/chat/completions or /v1/completions answered, one object or a list, asked
for with "return_input_ids": true and "return_output_ids": true (and, without --toploc-verification on its server,
"return_toploc_fingerprints": true). Exit status: 0 all pass, 1 one fails, 2 one cannot be verified.

example:
  tessera verify response.json --server http://127.0.0.1:30000
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="verify the TOPLOC fingerprints of a saved response",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("response", type=Path, help="the saved response")
    parser.add_argument("--server", required=True, metavar="URL", help="a server of the same model that keeps rows")
    add_api_key(parser)
    parser.add_argument("--nonce", help="the nonce with which the response was asked for (toploc_nonce)")
    parser.add_argument("--lora-path", metavar="NAME", help="the adapter with which the response was computed")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Verify, print a table, and return the exit status."""
    try:
        from tessera.client import Claim, Client, ClientError, Retry, Timeouts
    except ModuleNotFoundError as error:
        print(f"tessera verify needs the client library ({error}); {install('client')}")
        return UNVERIFIABLE
    try:
        claims = read(json.loads(options.response.read_text(encoding="utf-8")), options.nonce, options.lora_path)
        once, patient = Retry(times=0), Timeouts(batch=_SECONDS)
        with Client(options.server, api_key=options.api_key, timeouts=patient, retry=once) as client:
            results = [dict(verdict.details) for verdict in client.verify([Claim(**claim) for claim in claims])]
        lines = table(results)
    except (OSError, TypeError, ValueError, RecursionError, ClientError) as error:
        print(f"cannot be verified: {error}")
        return UNVERIFIABLE
    print(lines)
    verdicts = {result["verdict"] for result in results}
    return FAIL if "fail" in verdicts else UNVERIFIABLE if "unverifiable" in verdicts else PASS


def read(saved: Any, nonce: str | None = None, lora_path: str | None = None) -> list[dict[str, Any]]:
    """The claims in a saved response.

    Raises:
        ValueError: it is no response, or lacks fingerprints or token ids; the message says what to ask for.
    """
    answers = saved if isinstance(saved, list) else [saved]
    strange = [answer for answer in answers if not isinstance(answer, dict)]
    if strange:
        raise ValueError(f"{json.dumps(strange[0])[:40]} is no response: that is an object")
    shared = {"nonce": nonce, "lora_path": lora_path}
    said = {name: value for name, value in shared.items() if value is not None}
    return [_claim(part) | said for answer in answers for part in _parts(answer)]


def _parts(answer: dict[str, Any]) -> list[Any]:
    parts = answer.get("choices") or answer.get("meta_info")
    return parts if isinstance(parts, list) else [parts]


def _claim(part: Any) -> dict[str, Any]:
    found = part if isinstance(part, dict) else {}
    message = found.get("message")
    found = {**found, **(message if isinstance(message, dict) else {})}
    names = {
        "input_ids": "return_input_ids",
        "output_ids": "return_output_ids",
        FINGERPRINTS: "return_toploc_fingerprints",
    }
    missing = [field for name, field in names.items() if found.get(name) is None]
    if missing:
        raise ValueError(f"the response was not asked for with {', '.join(missing)}")
    return {"input_ids": found["input_ids"], "output_ids": found["output_ids"], "fingerprints": found[FINGERPRINTS]}


def table(results: list[dict[str, Any]]) -> str:
    """One line for each response and each of its fingerprints.

    Raises:
        ValueError: these are no results of ``/v1/toploc/verify``.
    """
    try:
        return _table(results)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no answer of /v1/toploc/verify: {json.dumps(results)[:80]}") from error


def _table(results: list[dict[str, Any]]) -> str:
    lines = [f"  {'':12s} {'exponents':>9s} {'mean':>7s} {'median':>7s}"]
    for i, result in enumerate(results):
        lines.append(f"response {i}: {result['verdict'].upper()} {result['reason']}".rstrip())
        for j, one in enumerate(result["statistics"]):
            lines.append(_line("prompt" if j == 0 else f"tokens {32 * (j - 1) + 1}-", one))
        lines.append(_line("at most", result["thresholds"]))
    return "\n".join(lines)


def _line(what: str, one: dict[str, float]) -> str:
    return f"  {what:12s} {one['exp_mismatches']:9.0f} {one['mant_err_mean']:7.2f} {one['mant_err_median']:7.2f}"
