"""Markdown and executed notebooks as HTML: every text is escaped, and nothing is asked of another host."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mistune
import nbformat
from nbconvert.exporters import HTMLExporter
from traitlets.config import Config

NUMBER_MARKS = re.compile(r"<!--.*?-->", re.DOTALL)  # `0.123<!--#key-->`: for the tests of numbers, not for readers
LONG_TABLE = 16  # rows above which a table is folded
TEMPLATES = Path(__file__).parent / "templates"
SKIPPED = ("code", "data")  # classes of elements whose text the search leaves out
VIEW = "application/vnd.vegalite.v5+json"  # an interactive figure
FOLD = re.compile(r"<details>\s*<summary>([^<]*)</summary>\s*|</details>\s*")  # as `show_table` writes it, escaped
VOID = ("img", "br", "hr", "input")
# A link or a picture as a page of the site has it: relative address, or None where the site does not hold it.
Resolve = Callable[[str], str | None]


@dataclass
class Section:
    """A part of a page below one heading, for the search: `text` is plain."""

    title: str
    anchor: str
    text: str = ""


class _Renderer(mistune.HTMLRenderer):
    """Headings have the anchors that GitHub gives them; wide tables scroll alone, long ones are folded,
    and so are those that a notebook folds."""

    def __init__(self, resolve: Resolve, taken: dict[str, int], shift: int) -> None:
        super().__init__(escape=True)
        self.resolve, self.taken, self.shift = resolve, taken, shift
        self.folded = False

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        name = re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]+>", "", text).lower()).strip().replace(" ", "-")
        count = self.taken[name] = self.taken.get(name, -1) + 1
        at = f"h{min(level + self.shift, 6)}"
        return f'<{at} id="{escape(name)}{f"-{count}" if count else ""}">{text}</{at}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        target = url if url.startswith(("https://", "http://", "#")) else self.resolve(url)
        return text if target is None else f'<a href="{escape(target)}">{text}</a>'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        target = self.resolve(url)
        alt = escape(plain(text))
        return alt if target is None else figure(target, alt)

    def table(self, text: str) -> str:
        rows = text.count("<tr") - 1
        shown = f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'
        long = rows > LONG_TABLE and not self.folded
        return f"<details><summary>{rows} rows</summary>{shown}</details>\n" if long else shown

    def block_html(self, html: str) -> str:
        found = FOLD.fullmatch(html)
        if found is None or self.folded != (found[1] is None):  # a fold ends where one has begun
            return super().block_html(html)
        self.folded = not self.folded
        return f"<details><summary>{found[1]}</summary>\n" if self.folded else "</details>\n"


def figure(address: str, alt: str) -> str:
    """A picture that links to itself at full size. `address`, `alt`: escaped."""
    return f'<a class="figure" href="{address}"><img src="{address}" alt="{alt}" loading="lazy"></a>'


def markdown(text: str, resolve: Resolve, taken: dict[str, int] | None = None, shift: int = 0) -> str:
    """Markdown as HTML without the marks of numbers; HTML within it is shown as letters, but for folds.

    Args:
        taken: anchors of the page so far, and how often each; is added to.
        shift: levels by which headings move down.
    """
    renderer = _Renderer(resolve, {} if taken is None else taken, shift)
    html = mistune.create_markdown(renderer=renderer, plugins=["table"])(NUMBER_MARKS.sub("", text))
    return str(html)


def docstring(text: str) -> str:
    """A docstring as HTML: what stands below `Args:` is a list; a line that begins with a plus is no item of one."""
    text = re.sub(r"^ {4}([\w, ]+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    return markdown(re.sub(r"^\+ ", r"\\+ ", text, flags=re.MULTILINE), lambda address: None)


def notebook(path: Path, resolve: Resolve) -> tuple[str, dict[str, bytes]]:
    """An executed notebook as HTML, its code folded, and its pictures by file name.

    Outputs are shown as Markdown, picture, view or plain text: HTML and scripts of an output are left out.
    """
    taken: dict[str, int] = {}
    content: Any = nbformat.v4.reads(path.read_text(encoding="utf-8"))  # type: ignore[no-untyped-call]
    heading = path.stem
    for cell in content.cells:
        if cell.cell_type == "markdown":
            heading = next(iter(re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)), heading)
        for number, output in enumerate(cell.get("outputs", [])):
            if output.output_type == "stream":
                output.pop("metadata", None)  # the normalised notebooks have it, and no schema does
            elif "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"alt": f"{heading} ({path.stem}, figure {number + 1})"}
    settings = Config()
    settings.HTMLExporter.update(
        {
            "template_name": "notebook",
            "extra_template_basedirs": [str(TEMPLATES)],
            "exclude_input_prompt": True,
            "exclude_output_prompt": True,
            "filters": {
                "markdown2html": lambda text: markdown(text, resolve, taken),
                "as_attribute": lambda view: escape(json.dumps(view, ensure_ascii=False)),
            },
        }
    )
    settings.NbConvertBase.display_data_priority = ["text/markdown", "image/png", VIEW, "text/plain"]
    settings.ExtractOutputPreprocessor.update(
        {"enabled": True, "output_filename_template": f"figures/{path.stem}_{{cell_index}}_{{index}}{{extension}}"}
    )
    body, resources = HTMLExporter(config=settings).from_notebook_node(content)  # type: ignore[no-untyped-call]
    return body, dict(resources["outputs"])


@dataclass
class _Sections(HTMLParser):
    """Splits HTML at its headings; code cells and tables of numbers are left out."""

    found: list[Section] = field(default_factory=lambda: [Section("", "")])
    heading: bool = False
    skipped: int = 0

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        anchor = dict(attrs).get("id")
        if re.fullmatch("h[1-6]", tag) and anchor:
            self.found.append(Section("", anchor))
            self.heading = True
        elif self.skipped or dict(attrs).get("class") in SKIPPED:
            self.skipped += tag not in VOID

    def handle_endtag(self, tag: str) -> None:
        self.heading = self.heading and not re.fullmatch("h[1-6]", tag)
        self.skipped -= bool(self.skipped)

    def handle_data(self, data: str) -> None:
        if self.heading:
            self.found[-1].title += data
        elif not self.skipped:
            self.found[-1].text += data + " "


def sections(html: str) -> list[Section]:
    """The parts of a page below its headings, whitespace joined; those without a heading or text are left out."""
    parser = _Sections()
    parser.feed(str(html))  # markupsafe's texts escape what they are joined to
    for part in parser.found:
        part.text = " ".join(part.text.split())
    return [part for part in parser.found if part.title or part.text]


def plain(html: str) -> str:
    """The text of a piece of HTML."""
    return " ".join(f"{part.title} {part.text}".strip() for part in sections(html))
