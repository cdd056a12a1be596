"""Which files make the site: pages and notebooks of the whole tree, and the files they link to.

MkDocs looks into one folder alone. As a hook this gives it the tree's own pages instead, under the
paths that they have in the tree, so that every link between them works in both places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = (
    "*.md",
    "docs/**/*.md",
    "notebooks/*.md",
    "notebooks/*.ipynb",
    "validation/*.md",
    "traces/data/*.md",
)
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)")


def pages() -> list[Path]:
    """Return the Markdown files and notebooks of the tree that are pages of the site."""
    return sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})


def linked(page: Path) -> Iterator[Path]:
    """Yield the files of the tree, pages or not, to which a page links."""
    for target in _LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        if "://" not in target and path.is_file() and path.is_relative_to(ROOT):
            yield path


@event_priority(100)  # before the plugin that renders notebooks looks at them
def on_files(files: Files, config: Any) -> Files:
    """Return the pages and what they link to in place of what MkDocs found, the theme's apart."""
    mine = pages()
    every = {*mine, *(path for page in mine if page.suffix == ".md" for path in linked(page))}
    theme = [file for file in files if not file.is_documentation_page() and not _in_docs(file)]
    directories = config.use_directory_urls
    tree = [
        File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, directories)
        for path in sorted(every)
    ]
    return Files([*theme, *tree])


def _in_docs(file: File) -> bool:
    return Path(str(file.abs_src_path)).is_relative_to(ROOT / "docs")
