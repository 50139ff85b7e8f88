"""``tessera encode``: a vector for each of many documents, by several servers."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.cli.connection import add_api_key
from tessera.flag import count
from tessera.installing import install

if TYPE_CHECKING:
    from tessera.client.options import EncodeOptions

_EPILOG = """\
An input file has one document in each row (Parquet) or line (JSON lines), with an id and a text. The output folder gets
part-000000.parquet and so on, with the columns of the id and "embedding" (a fixed list of float32), in the order of the
input. All rows are checked before the first is sent.

When the command is killed, start it again with the same options: it goes on. Each row is in exactly one file; a file is
there only when it is whole. A server may fail or be restarted: its work goes to the others, or waits.

Give the servers' own addresses, not a router's: the work is divided here. They must serve the same model.

examples:
  tessera encode --input docs.parquet --output vectors --servers http://127.0.0.1:30000
  tessera encode --input a.jsonl b.jsonl --output vectors --servers http://10.0.0.1:30000,http://10.0.0.2:30000 \\
    --id-column name --text-column body --pooling last --normalize
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "encode",
        help="embed a file of documents with several servers, resumably (Ray Data)",
        description="Embed every document of Parquet or JSON lines files with one or more servers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--input", type=Path, nargs="+", required=True, metavar="FILE", help=".parquet or .jsonl")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="an empty folder, or that of a run")
    parser.add_argument("--servers", required=True, type=_urls, metavar="URL[,URL...]", help="of the same model")
    add_api_key(parser)
    parser.add_argument("--id-column", default="id", metavar="NAME", help="default: id")
    parser.add_argument("--text-column", default="text", metavar="NAME", help="default: text")
    parser.add_argument("--pooling", choices=["mean", "last", "max", "first"], help="default: the server's, mean")
    parser.add_argument("--normalize", action="store_true", help="vectors of length 1")
    parser.add_argument("--dimensions", type=count, metavar="N", help="only the first N values")
    parser.add_argument("--lora-path", metavar="NAME", help="an adapter that the servers have loaded")
    parser.add_argument("--rows-per-file", type=count, default=1024, metavar="N", help="default: 1024")
    parser.add_argument(
        "--at-once", type=count, default=2, metavar="N", help="files in the making for each server; default: 2"
    )
    parser.add_argument(
        "--patience", type=float, default=600, metavar="SECONDS", help="wait so long if no server works; default: 600"
    )
    parser.add_argument(
        "--ray-address", default="local", metavar="ADDRESS", help="of a Ray cluster; default: Ray on this machine only"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Encode; 0 if every document has its vector."""
    try:
        from tessera.bulk import run as bulk
        from tessera.bulk.documents import Columns, parts
        from tessera.bulk.folder import claim_folder
        from tessera.bulk.job import Job
        from tessera.client import ClientError
        from tessera.client.progress import Bar

        bulk.check_ray()
    except ModuleNotFoundError as error:
        print(f"tessera encode needs Ray Data and the client ({error}); {install('encode')}")
        return 1
    columns = Columns(options.id_column, options.text_column)
    how = _options(options)
    try:
        found = list(parts(options.input, columns, options.rows_per_file))
        probe = bulk.probe(options.servers, options.api_key, how)
        about = {
            "input": bulk.sources(options.input),
            "columns": [columns.id, columns.text],
            "options": how,
            "rows_per_file": options.rows_per_file,
            "probe": probe.tolist(),
        }
        with claim_folder(options.output, about):
            output = options.output.resolve()
            job = Job(output, columns, tuple(options.servers), options.api_key, how, options.patience, probe)
            total = sum(part.rows for part in found)
            bar = Bar("encode", total, shown=True)
            bulk.encode(job, found, options.at_once * len(options.servers), options.ray_address, bar)
    except (ClientError, OSError, ValueError) as error:
        print(f"tessera encode: {error}", file=sys.stderr)
        return 1
    print(f"{total} documents in {len(found)} files of {output}")
    return 0


def _options(options: argparse.Namespace) -> EncodeOptions:
    names = ("pooling", "dimensions", "lora_path")
    how: EncodeOptions = {name: value for name in names if (value := getattr(options, name)) is not None}  # type: ignore[assignment]
    return {**how, "normalize": True} if options.normalize else how


def _urls(text: str) -> list[str]:
    return [url.strip() for url in text.split(",") if url.strip()]
