"""What is generated in the pages of the documentation. ``python -m tessera_testing.page_tables`` writes it."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any
from unittest.mock import patch

from tessera import errors
from tessera.capabilities.inject import refusals as injection
from tessera.cli import parser
from tessera.flags import Flags, name_of
from tessera.http.schema import STOCK_REQUESTS, document, request_fields
from tessera.refusal import Refusal
from tessera.rows import refusals as rows
from tessera.tilespec import refusals as tilespec
from tessera_patches import inventory, support
from tessera_patches.core import lock
from tessera_patches.launch import default_deny
from tessera_testing import models_page, refused_versions, seams_page, trials_page
from tessera_testing.pages import DOCS, GENERATED, PAGES, ROOT, table

OPENAPI = DOCS / "reference" / "openapi.json"
SEAMS = DOCS / "reference" / "seams.md"
TRIED = DOCS / "measurements" / "refusals.md"
TRAINED = DOCS / "reference" / "trained.json"
RUNNERS = DOCS / "reference" / "moe_runners.toml"
SNIPPET = "snippet "
"""Begins the name of a part that is a file, shown as a block of code."""
PRINTED = DOCS / "snippets" / "printed.toml"
"""What these files print, shown in a block after them."""
_ROUTES = {
    "GenerateReqInput": "/generate",
    "ChatCompletionRequest": "/v1/chat/completions",
    "CompletionRequest": "/v1/completions",
}
"""Where SGLang takes these requests."""
_PYTHON_FOLDERS = ("python/tessera", "patches/tessera_patches")


def _refused(refusals: tuple[Refusal, ...]) -> Callable[[], str]:
    return lambda: table(("option", "why"), *((f"`{refusal.option}`", refusal.reason) for refusal in refusals))


def _refused_always() -> str:
    """Options that are refused with any feature."""
    found = ((f"`--{name.replace('_', '-')}`", why) for name, why in default_deny.lists().refused.items())
    return table(("option", "why"), *found)


def _trained() -> str:
    """What `tests/real` found, a column for each model."""
    found = json.loads(TRAINED.read_text())
    names = dict.fromkeys(name for column in found.values() for name in column)
    return table(("", *found), *((name, *(column.get(name, "") for column in found.values())) for name in names))


def _runners() -> str:
    """One line for each value of SGLang's enum of MoE runners."""
    keys = ("hardware", "parallelism", "quantization", "state")
    head = ("`--moe-runner-backend`", "what it is for", *keys[:3], "state in SGLang 0.5.17")
    return table(head, *((f"`{one['name']}`", one["what"], *(one[key] for key in keys)) for one in _entries()))


def _runners_measured() -> str:
    """What was found of each."""
    return table(("`--moe-runner-backend`", "found"), *((f"`{one['name']}`", one["measured"]) for one in _entries()))


def _entries() -> Any:
    return tomllib.loads(RUNNERS.read_text())["runner"]


def _versions() -> str:
    """What each supported SGLang version has: those that are in the lock file."""
    versions, needs = lock.supported_versions(), support.releases()
    rows = [
        ("torch", *(needs[one].torch for one in versions)),
        ("Python of SGLang", *(needs[one].python for one in versions)),
        ("seams", *(str(len(inventory.at(one))) for one in versions)),
        ("functions, classes and fields reviewed", *(str(len(lock.load(one))) for one in versions)),
    ]
    rows += [
        (f"`{option}`", *("refused" if feature in support.absent(one) else "yes" for one in versions))
        for feature, option in support.OPTIONS.items()
    ]
    return f"{table(('SGLang', *versions), *rows)}\n{_VERSIONS}\n\n{_refused_versions(versions)}"


_VERSIONS = """\
These combinations are refused with some versions alone; others are [refused](refusals.md) with every version."""


def _refused_versions(versions: list[str]) -> str:
    """Every refusal that is of some versions alone."""
    return table(
        ("option", "with", *versions, "why"),
        *(
            (
                f"`{one.option}`",
                one.features,
                *("refused" if one.refused(version) else "yes" for version in versions),
                one.why,
            )
            for one in refused_versions.of_some()
        ),
    )


def _explained(source: str) -> Iterator[tuple[str, str]]:
    """Constants of a module, and the docstrings behind them."""
    for assignment, reason in itertools.pairwise(ast.parse(source).body):
        if not isinstance(assignment, ast.Assign) or not isinstance(target := assignment.targets[0], ast.Name):
            continue
        if isinstance(reason, ast.Expr) and isinstance(reason.value, ast.Constant):
            yield target.id, " ".join(str(reason.value.value).split())


def _limits() -> str:
    """Maxima with their reasons."""
    source = (ROOT / "python/tessera/limits.py").read_text()
    values: dict[str, Any] = {}
    exec(compile(source, "limits.py", "exec"), values)  # noqa: S102 - the file as it is, not as it was imported
    found = [(f"`{name}`", f"{values[name]:,}", why) for name, why in _explained(source)]
    return table(("limit", "value", "why"), *found)


def _errors() -> str:
    """Codes that travel over HTTP, their status, and what the docstring says."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = [
        (kind.code, kind.status, str(kind.__doc__).partition("\n")[0])
        for kind in kinds
        if issubclass(kind, errors.TesseraError) and "code" in vars(kind)
        if kind not in {errors.TesseraError, errors.StartRefused}
    ]
    found += [
        (code, errors.RequestFailed(code, "").status, why)
        for name, why in _explained((ROOT / "python/tessera/errors.py").read_text())
        if isinstance(code := getattr(errors, name), str)
    ]
    rows = [
        (f"`{code}`", str(status), re.sub(r"^(HTTP )?\d+: ", "", why).replace("``", "`")) for code, status, why in found
    ]
    return table(("code", "status", "when, and what to do"), *rows)


_SERIES = {"counter", "gauge", "histogram", "Counter"}
"""Functions that make a series, and the class that declares a counter."""


def _metrics() -> str:
    """Every series of ours, with the text that ``/metrics`` has."""
    found = [
        (
            f"`tessera:{name}`",
            call.func.id.lower(),
            text,
            ", ".join(f"`{one}`" for one in others if isinstance(one, str)),
        )
        for folder in _PYTHON_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _SERIES
        if call.args and isinstance(call.args[0], ast.Constant)
        for name, text, *others in [[ast.literal_eval(argument) for argument in call.args]]
    ]
    return table(("metric", "kind", "what", "labels"), *sorted(found))


def _flags(prefix: str = "--") -> Callable[[], str]:
    """Our options that begin like this, as ``--help`` has them."""
    found = [
        (f"`{' '.join(filter(None, [name_of(one), one.metadata['metavar']]))}`", one.metadata["help"])
        for one in fields(Flags)
        if name_of(one).startswith(prefix)
    ]
    return lambda: table(("option", "meaning"), *found)


def _meanings(schema: str) -> Callable[[], str]:
    """The keys of one object, without their types: docs/reference/fields.md has these."""

    def rows() -> str:
        found = document()["components"]["schemas"][schema]
        properties = (found if "properties" in found else found["anyOf"][0])["properties"]
        return table(("key", "meaning"), *((f"`{key}`", one["description"]) for key, one in properties.items()))

    return rows


def _options() -> str:
    """The keys of ``return_embedding``."""
    return _properties(document()["components"]["schemas"]["TesseraEmbedOptions"]["properties"], [])


def _commands() -> str:
    """The help of every command, in a width that does not depend on the terminal."""
    # Taken back afterwards: in a changed environment, servers of later tests would start without the prepared imports.
    with patch.dict(os.environ, COLUMNS="112"):
        return "".join(f"\n## `{one.prog}`\n\n```text\n{one.format_help()}```\n" for one in _parsers(parser()))


def _parsers(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Itself and those of its commands."""
    yield one
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _parsers(below)


def _fields() -> str:
    """Our request bodies, objects inside of them, and our fields on SGLang's requests."""
    ours = {name: request_fields(name) for name in STOCK_REQUESTS}
    every = {field: schema for own in ours.values() for field, schema in own.items()}
    missing = {field: [name for name, own in ours.items() if field not in own] for field in every}
    for field, names in missing.items():
        if names:
            says = every[field].get("description", "")
            every[field] = {
                **every[field],
                "description": f"{says}; not on {' and '.join(f'`{_ROUTES[name]}`' for name in names)}".removeprefix(
                    "; "
                ),
            }
    shown = [f"\n## Ours on {', '.join(f'`{_ROUTES[name]}`' for name in ours)}\n\n{_properties(every, [])}"]
    for name, schema in document()["components"]["schemas"].items():
        shown += [
            f"\n## `{name}`\n\n{_properties(one['properties'], one.get('required', []))}"
            for one in ([schema] if "properties" in schema else schema.get("anyOf", []))
            if "properties" in one
        ]
    return "".join(shown)


def _properties(properties: Mapping[str, Any], required: list[str]) -> str:
    found = [
        (
            f"`{name}`",
            "required" if name in required else f"`{json.dumps(schema['default'])}`" if "default" in schema else "",
            _kind(schema),
            schema.get("description", ""),
        )
        for name, schema in properties.items()
    ]
    return table(("field", "default", "allowed", "meaning"), *found)


def _kind(schema: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}{_range(schema, 'Items')}"
    if kind == "object":
        names = ", ".join(f"`{name}`" for name in schema.get("properties", {}))
        return f"object{f' of {names}' if names else ''}"
    return f"{kind if isinstance(kind, str) else ' or '.join(kind)}{_range(schema, 'imum')}"


def _range(schema: Mapping[str, Any], of: str) -> str:
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    if most is not None:
        return f" ({least or 0:,} to {most:,})"
    return f" (at least {least})" if least not in (None, 0, 1) or (least == 1 and of == "imum") else ""


TABLES: dict[str, Callable[[], str]] = {
    "refusals": _refused((*rows.REFUSALS, *rows.ENVIRONMENT)),
    "states": _refused(rows.BESIDE_STATE),
    "injection": _refused((*injection.REFUSALS, *injection.ENVIRONMENT)),
    "injection beside state": _refused(injection.BESIDE_STATE),
    "tilespec": _refused((*tilespec.REFUSALS, *tilespec.ENVIRONMENT)),
    "any": _refused_always,
    "versions": _versions,
    "limits": _limits,
    "errors": _errors,
    "architectures": models_page.architectures,
    "cells": models_page.cells,
    "trained": _trained,
    "runners": _runners,
    "runners measured": _runners_measured,
    "metrics": _metrics,
    "flags": _flags(),
    "embedding flags": _flags("--embeddings-"),
    "embedding options": _options,
    "overrides": _meanings("TesseraOverride"),
    "claim": _meanings("ToplocClaim"),
    "fields": _fields,
    "commands": _commands,
}


def generated(text: str) -> str:
    """A page with what is generated as it must be."""
    printed = tomllib.loads(PRINTED.read_text())

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name.startswith(SNIPPET):
            path = ROOT / name.removeprefix(SNIPPET)
            language = {".py": "python", ".mjs": "javascript"}[path.suffix]
            shown = f"\n```text\n{printed[path.name]}\n```\n" if path.name in printed else ""
            return f"{name} -->\n\n```{language}\n{path.read_text()}```\n{shown}\n"
        return f"{name} -->\n{TABLES[name]()}"

    return GENERATED.sub(fill, text)


def openapi() -> str:
    """The page docs/reference/openapi.json."""
    return json.dumps(document(), indent=1) + "\n"


def main() -> None:
    """Write all of it."""
    OPENAPI.write_text(openapi())
    SEAMS.write_text(seams_page.page())
    TRIED.write_text(trials_page.page())
    for page in PAGES.values():
        page.write_text(generated(page.read_text()))


if __name__ == "__main__":
    main()
