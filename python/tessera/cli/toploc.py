"""``tessera toploc calibrate``: thresholds for one model, from honest responses and from known cheats."""

from __future__ import annotations

import argparse
import json
import shlex
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tessera.capabilities.fingerprints.calibration import cheats, distances
from tessera.capabilities.fingerprints.calibration.campaign import VERIFIER, Campaign, Prover
from tessera.capabilities.fingerprints.calibration.distances import Measured
from tessera.capabilities.fingerprints.calibration.prover import TAMPERED, Response, tamper
from tessera.installing import install

AS_VERIFIER = "as the verifier"
DEFAULT_CHEATS = (*cheats.PRECISIONS, "skipped layer", *TAMPERED)

ENOUGH = 0.1
"""Honest responses that fail, at most, of those that a verifier will see: 29 that all pass show it."""

Distances = dict[str, list[Measured]]

_EPILOG = """\
One server for each --honest and each cheat with other weights makes responses, and one verifies all of them; they are
started --at-once at a time, and the plan is printed first. A start takes 15 to 120 s, 250 responses of an 8B on an H200
about 100 s (a third of them is made one by one), their verification 10 s. A cheat's weights are a rounded copy in a
temporary folder (TMPDIR). With --keep an interrupted run goes on where it was.

example, one H200, a small model, 1,000 honest responses, 9 servers at once (350 s):
  tessera toploc calibrate --model-path MODEL --output thresholds.json --keep responses.jsonl --responses 250 \\
    --honest= --honest='--attention-backend triton' --honest=--disable-cuda-graph \\
    --honest='--speculative-algorithm EAGLE --speculative-draft-model-path DRAFT' --at-once 9 \\
    --server-args='--attention-backend fa3 --mem-fraction-static 0.5 --max-total-tokens 65536'
then:
  python -m sglang.launch_server --model-path … --toploc-verification --toploc-thresholds thresholds.json
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("toploc", help="thresholds of fingerprints")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    calibrate = actions.add_parser(
        "calibrate",
        help="measure honest noise and known cheats, and write thresholds",
        description="Measure how far honest responses and those of known cheats lie from a verifier's own prefill, and "
        "write thresholds with the shares of both that pass. Every other honest response gives the thresholds, which "
        "are judged on the rest.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    calibrate.add_argument("--model-path", type=Path, required=True, metavar="FOLDER", help="the model, safetensors")
    calibrate.add_argument("--output", type=Path, required=True, metavar="FILE", help="thresholds are written here")
    calibrate.add_argument("--plot", type=Path, metavar="FILE", help="histograms are drawn here (needs matplotlib)")
    calibrate.add_argument("--responses", type=int, default=60, metavar="N", help="for each kind (default: 60)")
    calibrate.add_argument("--tokens", type=int, default=128, metavar="N", help="generated for each (default: 128)")
    calibrate.add_argument(
        "--server-args", type=shlex.split, default=[], metavar="ARGS", help="options of every server: --server-args='…'"
    )
    calibrate.add_argument(
        "--honest",
        action="append",
        metavar="ARGS",
        help="further options of an honest prover, as --honest='--an-option its-value'; may be repeated (default: one "
        "prover with none)",
    )
    calibrate.add_argument(
        "--cheats",
        type=lambda text: [name.strip() for name in text.split(",") if name.strip()],
        default=list(DEFAULT_CHEATS),
        metavar="NAMES",
        help=f"comma-separated (default: {','.join(DEFAULT_CHEATS)})",
    )
    calibrate.add_argument(
        "--other-model", type=Path, metavar="FOLDER", help="one more cheat: another model's responses"
    )
    calibrate.add_argument(
        "--margin",
        type=float,
        default=distances.MARGIN,
        help=f"thresholds are the largest honest distances times this (default: {distances.MARGIN})",
    )
    calibrate.add_argument(
        "--keep", type=Path, metavar="FILE", help="keep responses here, and do not ask again for those that it has"
    )
    calibrate.add_argument(
        "--at-once",
        type=int,
        default=1,
        metavar="N",
        help="servers that run at the same time (default: 1); more need --max-total-tokens among --server-args",
    )
    calibrate.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start servers, measure, write."""
    wrong = _option_error(options)
    if wrong:
        print(f"tessera toploc calibrate: {wrong}")
        return 2
    honest = [_prover(options, args or AS_VERIFIER, args) for args in options.honest or [""]]
    cheating = [_cheat(options, name) for name in options.cheats if name not in TAMPERED]
    if options.other_model is not None:
        cheating.append(_prover(options, "another model", "")._replace(model=options.other_model))
    campaign = Campaign(options.responses, options.tokens, options.at_once, options.keep, _say)

    def derived() -> dict[str, list[Response]]:
        made = campaign.made[honest[0].kind]
        return {name: [tamper(one, name) for one in made] for name in options.cheats if name in TAMPERED}

    measured = campaign.run([*honest, *cheating], _prover(options, VERIFIER, ""), derived)
    good = {one.kind: measured.pop(one.kind) for one in honest}
    write(options, good, measured)
    return 0


def _option_error(options: argparse.Namespace) -> str:
    if not options.model_path.is_dir():
        return f"{options.model_path} is no folder"
    unknown = set(options.cheats) - set(DEFAULT_CHEATS)
    if unknown:
        return f"no cheat {', '.join(sorted(unknown))}; there are {', '.join(DEFAULT_CHEATS)}"
    if options.responses < distances.LEAST:
        return f"--responses must be at least {distances.LEAST}: half give the thresholds, and the rest judge them"
    if options.at_once > 1 and "--max-total-tokens" not in options.server_args:
        return "--at-once above 1 needs --max-total-tokens among --server-args, or the servers fight for memory"
    if options.plot is not None and find_spec("matplotlib") is None:
        return f"--plot needs matplotlib; {install('plot')}"
    return ""


def _prover(options: argparse.Namespace, kind: str, args: str) -> Prover:
    return Prover(kind, options.model_path, (*options.server_args, *shlex.split(args)))


def _cheat(options: argparse.Namespace, name: str) -> Prover:
    if name in cheats.PRECISIONS:
        weights = partial(cheats.requantize, options.model_path, precision=name)
    else:
        weights = partial(cheats.without_last_layer, options.model_path)
    return _prover(options, name, "")._replace(weights=weights)


def write(options: argparse.Namespace, good: Distances, bad: Distances) -> None:
    """The thresholds by honest distances, and what they are worth, into a file and on the terminal."""
    report = distances.report(good, bad, topk=_topk(good), margin=options.margin)
    about = {
        "model": str(options.model_path),
        "sglang": version("sglang"),
        "date": datetime.now(UTC).date().isoformat(),
        "server_args": options.server_args,
        "tokens": options.tokens,
    }
    options.output.write_text(json.dumps({**about, **report}, indent=1) + "\n")
    print(table(report))
    if float(str(report["false_reject_rate_below"])) > ENOUGH:
        print(f"warning: too few honest responses to say that less than {ENOUGH:.0%} fail; use more --responses")
    print(f"written: {options.output}")
    if options.plot is not None:
        from tessera.capabilities.fingerprints.calibration.histograms import draw

        draw(good, bad, report["thresholds"], options.plot)
        print(f"drawn: {options.plot}")


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _topk(good: Distances) -> int:
    return max(values for responses in good.values() for one in responses for values in one.values)


def table(report: dict[str, object]) -> str:
    """What passes, for the terminal."""
    lines = [
        f"thresholds: {report['thresholds']}",
        f"honest responses that fail (95 % confidence): below {report['false_reject_rate_below']:.2%}",
        "",
        f"{'':24s} {'responses':>9s} {'pass':>6s} {'pass by default thresholds':>27s}",
    ]
    for kind in ("honest", "cheats"):
        rows: dict[str, dict[str, int]] = report[kind]  # type: ignore[assignment]
        lines += [
            f"{name:24s} {row['responses']:9d} {row['passed']:6d} {row['passed_by_default']:27d}"
            for name, row in rows.items()
        ]
    return "\n".join(lines)
