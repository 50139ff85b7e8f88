"""What MkDocs does not do by itself: README.md is the first page, and files outside docs/ come along.

MkDocs calls the functions below (``hooks`` in mkdocs.yml). A link to a file outside docs/ would be broken in a site:
the file is put into the site, in ``source/``, and the link is changed to it.
"""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, HOME, OUTSIDE = ROOT / "docs", ROOT / "README.md", "source/"
LINK = re.compile(r"\[([^\]\n]*)\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def place(uri: str) -> Path:
    """Where the source of a file of the site lies."""
    if uri == "index.md":
        return HOME
    return ROOT / uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS / uri


def uri_of(path: Path) -> str:
    """The opposite of `place`."""
    if path == HOME:
        return "index.md"
    return path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else OUTSIDE + str(path.relative_to(ROOT))


def targets(uri: str, text: str) -> list[Path]:
    """Files of this repository to which a page links."""
    return [Path(os.path.normpath(place(uri).parent / link)) for _, link, _ in LINK.findall(FENCE.sub("", text))]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add README.md, and what pages link to outside docs/."""
    files.append(File.generated(config, "index.md", abs_src_path=str(HOME)))
    pages = [file.src_uri for file in files.documentation_pages()]
    while pages:
        uri = pages.pop()
        for path in targets(uri, place(uri).read_text()):
            if path.is_file() and path.is_relative_to(ROOT) and files.get_file_from_path(uri_of(path)) is None:
                files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))
                pages += [uri_of(path)] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links as they are in the site; one to a folder is only its text. The log is not searched."""
    uri = page.file.src_uri
    if uri.startswith((OUTSIDE, "design/log/")):
        page.meta["search"] = {"exclude": True}

    def changed(link: re.Match[str]) -> str:
        text, path, anchor = link.groups()
        target = Path(os.path.normpath(place(uri).parent / path))
        if target.is_dir():
            return str(text)
        to = uri_of(target) if target.is_relative_to(ROOT) else path
        return f"[{text}]({os.path.relpath(to, Path(uri).parent)}{anchor or ''})"

    fences: list[str] = []

    def keep(block: re.Match[str]) -> str:
        fences.append(block[0])
        return f"\0{len(fences) - 1}\0"

    text = LINK.sub(changed, FENCE.sub(keep, markdown))
    return re.sub(r"\0(\d+)\0", lambda found: fences[int(found[1])], text)
