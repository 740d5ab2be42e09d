"""Writes the site: one folder that opens from a file, asks no other host and reads without scripts."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from study.analysis.report.plots import look
from study.analysis.report.results import Results, lineage
from study.base import paths
from study.base.errors import StudyError
from study.base.files import replacing, write_text
from study.site import content, markup

STATIC = Path(__file__).parent / "static"
MADE = ".made-by-study-site"  # marks a folder that may be replaced
EXCERPT = 600  # letters of a section that the search reads


@dataclass
class Site:
    """A site being written: its folder, and what is on it so far."""

    folder: Path
    dataset: str
    menu: list[tuple[str, str]] = field(default_factory=list)
    index: list[tuple[str, str, str]] = field(default_factory=list)
    pictures: dict[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loader = FileSystemLoader(markup.TEMPLATES)
        self.pages = Environment(
            loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )

    def write(self, name: str, template: str, title: str, **values: Any) -> None:
        """Write a page from its template, and add its sections to the search."""
        html = self.pages.get_template(f"{template}.html.j2").render(
            title=title, name=name, menu=self.menu, dataset=self.dataset, **values
        )
        write_text(self.folder / name, html)
        body = html.partition("<main>")[2].partition("</main>")[0]
        for part in markup.sections(body):
            heading = title if part.title in ("", title) else f"{title}: {part.title}"
            self.index.append((heading, f"{name}#{part.anchor}" if part.anchor else name, part.text[:EXCERPT]))

    def read(self, path: Path, shift: int = 0) -> Markup:
        """A file of Markdown as HTML. `shift`: levels by which its headings move down."""
        html = markup.markdown(path.read_text(encoding="utf-8"), partial(self.resolve, path), shift=shift)
        return Markup(html)  # noqa: S704 (escaped by `markup`)

    def resolve(self, source: Path, address: str) -> str | None:
        """The address on the site of a file that a text names; None where the site does not hold it."""
        path, _, anchor = address.partition("#")
        target = (source.parent / path).resolve()
        if target.suffix == ".png" and target.is_file() and paths.root() in target.parents:
            self.pictures[f"figures/{target.name}"] = target
            return f"figures/{target.name}"
        if target == paths.root() / "README.md":
            return "index.html"
        if target.suffix == ".md" and target.parent == paths.root() / "docs" and target.is_file():
            return f"{target.stem}.html{'#' if anchor else ''}{anchor}"
        return None


def build(dataset: str, folder: Path, *, texts: bool = False) -> Path:
    """Write the site of a data set; an earlier one in the folder is replaced once the new one is whole.

    Parts whose tables, notebooks or texts are not there are left out.

    `texts`: names of judged tasks and servers from this machine's data, which has no licence: not for publication.
    Returns: the start page.
    Raises StudyError: the folder holds something else.
    """
    if folder.exists() and not (folder / MADE).exists() and (folder.is_file() or any(folder.iterdir())):
        raise StudyError("this is no folder of an earlier site", file=folder, fix="name another one: --output FOLDER")
    results = Results.load(dataset)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as place:
        made = Path(place) / "site"
        _write(Site(made, dataset), results, texts)
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    return folder / "index.html"


def _write(site: Site, results: Results, texts: bool) -> None:
    """Write every page."""
    dataset = site.dataset
    matrix, topics = content.verdicts(dataset), content.topics(dataset, texts)
    notebooks = sorted((paths.results(dataset) / "notebooks").glob("*.ipynb"))
    documents = {path.stem: path for path in sorted((paths.root() / "docs").glob("*.md"))}
    findings = list(_findings(documents["findings"], site)) if "findings" in documents else []
    offered = {
        "index.html": ("start", True),
        "findings.html": ("findings", bool(findings)),
        "verdicts.html": ("verdicts", matrix is not None),
        "leaderboards.html": ("leaderboards", True),
        "systems.html": ("systems", True),
        "notebooks.html": ("notebooks", bool(notebooks)),
        "topics.html": ("judged topics", bool(topics)),
        "docs.html": ("docs", bool(documents)),
        "search.html": ("search", True),
    }
    site.menu += [(name, label) for name, (label, there) in offered.items() if there]
    for path in STATIC.iterdir():
        write_text(site.folder / path.name, path.read_text(encoding="utf-8"))
    write_text(site.folder / MADE, "")
    site.write("index.html", "index", results.title, findings=findings, results=results)
    if matrix is not None:
        site.write("verdicts.html", "verdicts", "Verdicts on the printed cells", table=matrix)
    boards = {"labels": content.by_labels(results), "usefulness": content.by_usefulness(dataset, results.titles)}
    tools = {
        path.parent.parent.name: site.read(path, shift=2)
        for path in sorted(paths.root().glob("results/*/tables/overall.md"))
        if path.parent.parent.name != dataset
    }
    site.write("leaderboards.html", "leaderboards", "Leaderboards", boards=boards, tools=tools)
    if topics:
        site.write("topics.html", "topics", "Judged topics", topics=topics, texts=texts)
    bodies = {name: site.read(path) for name, path in documents.items()}
    _write_texts(site, "docs.html", "Docs", bodies)
    _write_systems(site, results, markup.sections(bodies.get("deviations", "")))
    executed: dict[str, str] = {}
    for path in notebooks:
        executed[path.stem], images = markup.notebook(path, partial(site.resolve, path))
        for name, image in images.items():
            _write_bytes(site.folder / name, image)
    _write_texts(site, "notebooks.html", "Notebooks", executed)
    if any("data-view=" in body for body in executed.values()):
        draw = (markup.TEMPLATES / "views.js").read_text(encoding="utf-8")
        write_text(site.folder / "views.js", f"(() => {{{vl_convert.javascript_bundle(draw)}}})();\n")
    site.write("search.html", "search", "Search")
    for name, picture in site.pictures.items():
        _write_bytes(site.folder / name, picture.read_bytes())
    words = json.dumps(site.index, ensure_ascii=False, separators=(",", ":"))
    write_text(site.folder / "search-index.js", f"const INDEX = {words};\n")


def _write_texts(site: Site, name: str, title: str, bodies: Mapping[str, str]) -> None:
    """Write a page for each text, and one that lists them; nothing where there is none."""
    titles = {f"{stem}.html": markup.sections(body)[0].title for stem, body in bodies.items()}
    for (page, heading), body in zip(titles.items(), bodies.values(), strict=True):
        site.write(page, "text", heading, body=Markup(body))  # noqa: S704 (escaped by `markup`)
    if titles:
        site.write(name, "list", title, pages=titles)


def _write_systems(site: Site, results: Results, deviations: Sequence[markup.Section]) -> None:
    """Write a page for each system, and one that lists them. `deviations`: sections of docs/deviations.md."""
    pages = content.systems(results)
    site.write("systems.html", "systems", "Systems", pages=pages, look=look)
    for page in pages:
        base = results.titles[lineage(page.name)[-1]]
        own = [part for part in deviations if part.anchor and base in part.title]
        document = Markup(markup.docstring(page.document))  # noqa: S704 (escaped by `markup`)
        site.write(
            f"system-{page.name}.html", "system", page.title, page=page, document=document, look=look, deviations=own
        )


def _write_bytes(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@dataclass(frozen=True)
class Finding:
    """A finding of docs/findings.md: its heading, where it stands, its figure and its first paragraph."""

    title: str
    href: str
    figure: Markup
    summary: Markup


def _findings(path: Path, site: Site) -> Iterator[Finding]:
    for part in re.split(r"(?=<h2 )", site.read(path))[1:]:
        heading = re.match(r'<h2 id="([^"]*)">(\d\. .*?)</h2>', part)
        paragraphs = re.findall(r"<p>.*?</p>", part, re.DOTALL)
        if heading and len(paragraphs) > 1:
            href, title = f"findings.html#{heading[1]}", markup.plain(heading[2])
            yield Finding(title, href, Markup(paragraphs[0]), Markup(paragraphs[1]))  # noqa: S704 (escaped by `markup`)
