"""Hooks of the documentation site: build the navigation, and convert links that leave it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Build the navigation from the headings and links of the index, in their order."""
    index = Path(config.docs_dir, "README.md").read_text(encoding="utf-8")
    config.nav = [{"Overview": "README.md"}]
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        pages = re.findall(r"\[([^\]]+)\]\(([\w/-]+\.md)\)", text)
        config.nav.append({title: [{name.replace("`", ""): page} for name, page in pages]})
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace links to files outside `docs` by their text and path."""
    docs = Path(config.docs_dir)
    folder = Path(page.file.abs_src_path).parent

    def text_of(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        return f"{link[1]} (`{target.relative_to(docs.parent).as_posix()}`)"

    return re.sub(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)", text_of, markdown)
