"""toploc's own tests with our codec and verifier in place of its own: ``make test-peers TOPLOC=DIR``.

DIR is a checkout of toploc at the version that is installed. As a plugin of pytest (``-p peers_toploc``) this module
replaces what builds and verifies proofs: both libraries do the work, ours gives the answer, and a JSON line for each
call says what differed. As a program it runs the tests with the library and with us, and compares.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tessera.capabilities.fingerprints.codec import Fingerprint, build, parse
from tessera.capabilities.fingerprints.verifier import Distance, distances
from tessera.rows.reads import Points

CALLS = "PEERS_CALLS"
"""Environment: the file that gets a line for each call."""
MODES = ("toploc", "tessera")
Library = Callable[..., list[Any]]
"""A function of toploc's."""
_FORMS: dict[str, Callable[[Any], bytes]] = {
    "": lambda proof: bytes(proof.to_bytes()),
    "_bytes": bytes,
    "_base64": base64.b64decode,
}
"""The three forms of a proof by the ends of the functions' names, and how each becomes bytes."""


def pytest_configure() -> None:
    """Replace the functions before a test imports them."""
    import toploc
    import toploc.poly

    if CALLS not in os.environ:
        return
    # Its functions call each other: what it does alone must see its own.
    library = {name: own for name, own in vars(toploc.poly).items() if name.startswith(("build_", "verify_"))}
    for form, as_bytes in _FORMS.items():
        for kind, replaced in (("build", _with_our_build), ("verify", _verifying)):
            name = f"{kind}_proofs{form}"
            own = replaced(_alone(library, name), form, as_bytes)
            for module in (toploc, toploc.poly):
                if hasattr(module, name):
                    setattr(module, name, own)


def _alone(library: Mapping[str, Library], name: str) -> Library:
    """One of its functions, for which none is replaced."""
    import toploc.poly

    def called(*args: Any) -> list[Any]:
        ours = {each: getattr(toploc.poly, each) for each in library}
        vars(toploc.poly).update(library)
        try:
            return library[name](*args)
        finally:
            vars(toploc.poly).update(ours)

    return called


def _with_our_build(library: Library, form: str, as_bytes: Callable[[Any], bytes]) -> Library:
    def build_proofs(activations: Any, decode_batching_size: int, topk: int, skip_prefill: bool = False) -> list[Any]:
        theirs = library(activations, decode_batching_size, topk, skip_prefill)
        library_bytes = [as_bytes(proof) for proof in theirs]
        if any(not any(proof) for proof in library_bytes):  # the library's mark of an error; we raise instead
            return theirs
        points = [_points(chunk, topk) for chunk in _chunks(activations, decode_batching_size, skip_prefill)]
        ours = [base64.b64decode(one.to_base64()) for one in build(points)]
        _note(proofs=len(library_bytes), different=sum(a != b for a, b in zip(library_bytes, ours, strict=True)))
        return [_in_form(proof, form) for proof in ours]

    return build_proofs


def _verifying(library: Library, _form: str, as_bytes: Callable[[Any], bytes]) -> Library:
    def verified(
        activations: Any, proofs: Sequence[Any], decode_batching_size: int, topk: int, skip_prefill: bool = False
    ) -> list[Any]:
        from toploc.C.csrc.poly import VerificationResult

        theirs = library(activations, proofs, decode_batching_size, topk, skip_prefill)
        chunks = _chunks(activations, decode_batching_size, skip_prefill)
        ours = distances([_claimed(as_bytes(proof)) for proof in proofs], [_points(chunk, topk) for chunk in chunks])
        library_distances = [Distance(one.exp_mismatches, one.mant_err_mean, one.mant_err_median) for one in theirs]
        _note(
            verdicts=len(library_distances),
            different=sum(not np.allclose(a, b) for a, b in zip(library_distances, ours, strict=True)),
        )
        return [VerificationResult(*one) for one in ours]

    return verified


def _chunks(activations: Any, size: int, skip_prefill: bool) -> list[torch.Tensor]:
    """The values of each proof, flat: those of the prompt, then those of each ``size`` answers."""
    rest = activations if skip_prefill else activations[1:]
    chunks = [] if skip_prefill else [activations[0].reshape(-1)]
    return chunks + [torch.cat([row.reshape(-1) for row in rest[i : i + size]]) for i in range(0, len(rest), size)]


def _points(values: torch.Tensor, k: int) -> Points:
    places = values.abs().topk(k).indices
    return Points(places.cpu().numpy(), values[places].cpu().view(torch.uint16).numpy())


def _claimed(proof: bytes) -> Fingerprint:
    return parse("proof", base64.b64encode(proof).decode(), len(proof) // 2 - 1)


def _in_form(proof: bytes, form: str) -> Any:
    if form == "_bytes":
        return proof
    if form == "_base64":
        return base64.b64encode(proof).decode()
    from toploc import ProofPoly

    return ProofPoly.from_bytes(proof)


def _note(**record: int) -> None:
    with Path(os.environ[CALLS]).open("a", encoding="utf-8") as out:
        out.write(json.dumps(record) + "\n")


def main() -> int:
    """Run the tests both ways; 1 if an outcome, a proof or a verdict differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of toploc's sources, at the installed version")
    parser.add_argument("--out", type=Path, help="file that the page is added to")
    options = parser.parse_args()
    tests = options.checkout.resolve() / "tests"
    if not tests.is_dir():
        raise SystemExit(f"{tests} is no folder: give a checkout of toploc v{version('toploc')}")
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder, "calls.jsonl")
        calls.touch()
        outcomes = {mode: _outcomes(tests, mode, calls) for mode in MODES}
        records = [json.loads(line) for line in calls.read_text(encoding="utf-8").splitlines()]
    passed = [test for test, outcome in outcomes["toploc"].items() if outcome == "passed"]
    worse = [test for test in passed if outcomes["tessera"].get(test) != "passed"]
    count: Counter[str] = Counter()
    for record in records:
        kind = "proofs" if "proofs" in record else "verdicts"
        count[kind] += record[kind]
        count[f"different {kind}"] += record["different"]
    lines = [
        f"# toploc {version('toploc')}'s own tests, with our codec and verifier in place of its own",
        "",
        "| what | number | that differ |",
        "|---|---|---|",
        f"| tests that pass with toploc | {len(passed)} | {len(worse)} |",
        f"| proofs, byte by byte | {count['proofs']} | {count['different proofs']} |",
        f"| verdicts, number by number | {count['verdicts']} | {count['different verdicts']} |",
        "",
        *(f"- `{test}` fails" for test in worse),
    ]
    print("\n".join(lines))
    if options.out:
        with options.out.open("a", encoding="utf-8") as out:
            out.write("\n".join(["", *lines]).rstrip() + "\n")
    differ = len(worse) + count["different proofs"] + count["different verdicts"]
    return 1 if differ or not count["proofs"] or not count["verdicts"] else 0


def _outcomes(tests: Path, mode: str, calls: Path) -> dict[str, str]:
    """The outcome of each test, by name."""
    here = str(Path(__file__).resolve().parent)
    env = {**os.environ, "PYTHONPATH": here, **({CALLS: str(calls)} if mode == "tessera" else {})}
    command = [sys.executable, "-m", "pytest", "-p", "peers_toploc", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    command += ["-q", "-rA", "--tb=line", "-c", os.devnull, f"--rootdir={tests}", "."]
    done = subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True, check=False, timeout=900)
    lines = [line.split(" ", 2) for line in done.stdout.splitlines()]
    outcomes = {line[1]: line[0].lower() for line in lines if line[0] in {"PASSED", "FAILED", "ERROR"}}
    if not outcomes:
        raise SystemExit(done.stdout + done.stderr)
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
