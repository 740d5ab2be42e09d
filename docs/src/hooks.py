"""What mkdocs shows beside the pages of docs: README as start page, executed notebooks, and pages made of tables."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from html import escape
from inspect import getdoc
from pathlib import Path

import hydra
import nbformat
import pandas as pd
import vl_convert
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

from study import table
from study.analysis.report.results import Results
from study.base import paths
from study.base.registry import system_file
from study.config.compose import sound_systems
from study.config.groups import ORACLE

DATASET = "task2mcp"
NOTEBOOKS = sorted((paths.results(DATASET) / "notebooks").glob("*.ipynb"))
VIEW = "application/vnd.vegalite.v5+json"  # an interactive figure of a notebook
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the notebooks that were executed."""
    part = next(each for each in config.nav or [] if "Notebooks" in each)
    part["Notebooks"] = [f"notebooks/{path.stem}.md" for path in NOTEBOOKS]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what does not lie below docs."""
    made: dict[str, str | bytes] = {"index.md": (paths.root() / "README.md").read_text(encoding="utf-8")}
    made |= {"verdicts.md": verdicts(), "figures.md": figures()}
    made |= {f"leaderboards/{name}.md": text for name, text in leaderboards()}
    made |= {f"systems/{folder}.md": text for folder, text in systems()}
    for path in NOTEBOOKS:
        made |= notebook(path)
    made |= {str(path.relative_to(paths.root())): path.read_bytes() for path in paths.root().glob("figures/*/*.png")}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; what it does not hold is named, not linked."""
    folder = Path(page.file.src_uri).parent
    depth = "../" * len(folder.parts)

    def moved(found: re.Match[str]) -> str:
        mark, text, target, anchor = found.groups()
        name = re.sub(r"^(\.\./)*(docs/)?", "", target)
        name = re.sub(r"^results/\w+/notebooks/(.*)\.ipynb$", r"notebooks/\1.md", name)
        name = re.sub(r"^notebooks/(.*)\.ipynb$", r"notebooks/\1.md", name) if name != "README.md" else "index.md"
        own = next((each for each in (str(folder / target), name) if files.get_file_from_path(each)), None)
        made = origin(own) if mark and own and own.startswith("figures/") else ""
        return f"{mark}[{text}]({depth}{own}{anchor or ''}){made}" if own else text

    return LINK.sub(moved, markdown)


@cache
def origin(path: str) -> str:
    """The line below a table or figure: how to make it again, and the commit that changed it last."""
    stages = yaml.safe_load((paths.root() / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    outs = {
        (out if isinstance(out, str) else next(iter(out))): stage
        for stage, about in stages.items()
        for kind in ("outs", "metrics", "plots")
        for out in about.get(kind, [])
    }
    stage = next((outs[str(own)] for own in (Path(path), *Path(path).parents) if str(own) in outs), None)
    words = ["git", "log", "-1", "--format=%h of %as", "--", path]
    commit = subprocess.run(words, cwd=paths.root(), capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    made = f", made by `dvc repro {stage}`" if stage else ""
    return f"\n<small>`{path}`{made}{f', commit {commit}' if commit else ''}</small>\n"


def shown(frame: pd.DataFrame) -> str:
    """A data frame as a table that scrolls alone."""
    return f"\n{scrolling(frame.to_html(index=False, border=0, na_rep='', escape=True, justify='unset'))}\n"


def scrolling(html: str) -> str:
    """A table in a place of its own, which a keyboard reaches."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="table">{html}</div>'


def leaderboards() -> Iterator[tuple[str, str]]:
    """Every system by the labels, a page a protocol with the ceilings at its end, and by usefulness, a page with a
    section a part of the judged topics."""
    results = Results.load(DATASET)
    tested = results.significance.query("metric == 'ndcg@10'").set_index(["protocol", "system"])["randomisation_p_holm"]
    overall = results.overall.assign(metric=results.overall["metric"] + "@" + results.overall["k"].astype(str))
    for protocol in results.protocols:
        own = overall[overall["protocol"] == protocol]
        ends = own[own["metric"] == "ndcg@10"].set_index("system")
        means = own.pivot_table("mean", "system", "metric").sort_values("ndcg@10", ascending=False)
        ranked = [name for name in means.index if results.families[name] != ORACLE]
        rows = [
            {
                "rank": ranked.index(name) + 1 if name in ranked else "",
                "system": results.titles[name],
                "NDCG@10": f"{row['ndcg@10']:.3f} [{ends.ci_low[name]:.3f}, {ends.ci_high[name]:.3f}]",
                "p (T2MRec)": f"{p:.3g}" if pd.notna(p := tested.get((protocol, name))) else "",
                "Recall@10": f"{row['recall@10']:.3f}",
                "Precision@10": f"{row['precision@10']:.3f}",
            }
            for name, row in means.iterrows()
        ]
        board = pd.DataFrame(rows)
        ceilings, made = board["rank"] == "", origin(f"results/{DATASET}/tables/overall.csv")
        text = [f"# By the released labels: {protocol}", shown(board[~ceilings])]
        if ceilings.any():
            text += ["## Ceilings, which know the answer", shown(board[ceilings].drop(columns="rank"))]
        yield protocol, "\n\n".join([*text, made])
    text = ["# By usefulness, as judged from cards"]
    scores = table(DATASET, "judged/scores").query("metric == 'ndcg@10'")
    for part, own in scores.sort_values("mean", ascending=False, kind="stable").groupby("part", sort=False):
        rows = [
            {
                "rank": rank,
                "system": results.titles.get(row["system"], row["system"]),
                "judged NDCG@10": f"{row['mean']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]",
                "topics": row["n"],
                "unjudged of ten": f"{row['unjudged']:.2f}",
            }
            for rank, row in enumerate(own.to_dict("records"), 1)
        ]
        text += [f"## {part.capitalize()} topics", shown(pd.DataFrame(rows))]
    yield "useful", "\n\n".join([*text, origin(f"results/{DATASET}/judged/tables/scores.csv")])


def verdicts() -> str:
    """Every printed cell of Tables 3 and 4 beside ours, under the protocol that the paper states."""
    cells = table(DATASET, "audit/verdicts").query("table in ('table3', 'table4') and protocol == 'cold'")
    frame = cells[["place", "row", "paper", "ours", "diff", "verdict", "reason"]].round(4)
    frame.insert(2, "metric", cells["metric"] + "@" + cells["k"].astype(int).astype(str))
    counts = cells["verdict"].value_counts()
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    parts = [f"## {place}\n{shown(own.drop(columns='place'))}" for place, own in frame.groupby("place")]
    return "\n\n".join(
        [
            f"# Verdicts on the printed cells\n\nUnder `cold`, {len(cells)} cells: {said}.",
            *parts,
            origin(f"results/{DATASET}/audit/verdicts.csv"),
        ]
    )


def figures() -> str:
    """All figures, with what makes them."""
    text = ["# Figures"]
    for path in sorted(paths.root().glob("figures/*/*.png")):
        name = str(path.relative_to(paths.root()))
        title = f"{path.parent.name}: {path.stem.replace('_', ' ')}"
        text.append(f"## {title}\n\n![{title}]({name}){{loading=lazy}}\n{origin(name)}")
    return "\n\n".join(text)


def systems() -> Iterator[tuple[str, str]]:
    """A page a folder of conf/system, a section a system: what it is, its settings, its scores."""
    results, found = Results.load(DATASET), sound_systems()
    overall = results.overall.query("metric == 'ndcg' and k == 10").set_index(["system", "protocol"])
    text: dict[str, list[str]] = {}
    for name, system in sorted(found.items(), key=lambda item: str(item[1].title).lower()):
        file = system_file(name)
        about = (getdoc(hydra.utils.get_class(system.model["_target_"])) or "").partition("\n\n")[0]
        rows = overall.loc[name].reset_index() if name in overall.index.get_level_values(0) else None
        part = [
            f"## {system.title}",
            f"`{name}`, {system.family}. {escape(str(system.reference or ''))}",
            escape(about),
        ]
        if rows is not None:
            part.append(
                shown(
                    rows[["protocol", "mean", "ci_low", "ci_high", "n_seeds"]]
                    .round(4)
                    .rename(columns={"mean": "ndcg@10"})
                )
            )
        part.append(f"Settings: `{file.relative_to(paths.root())}`; again: `study run system={name} dataset={DATASET}`")
        text.setdefault(file.parent.name, [f"# Systems: {file.parent.name}"]).append("\n\n".join(part))
    for folder, parts in text.items():
        yield folder, "\n\n".join([*parts, origin(f"results/{DATASET}/tables/overall.csv")])


def notebook(path: Path) -> dict[str, str | bytes]:
    """An executed notebook as a page, with its pictures and interactive figures as files."""
    read = nbformat.read(path, as_version=4)
    made: dict[str, str | bytes] = {}
    for cell in read.cells:
        for output in cell.get("outputs", []):
            if VIEW in output.get("data", {}):
                view = f"notebooks/{path.stem}-{len(made)}.html"
                figure = output["data"][VIEW] | {"$schema": "https://vega.github.io/schema/vega-lite/v6.json"}
                made[view] = vl_convert.vegalite_to_html(figure, bundle=True)
                frame = (
                    f'<iframe src="{Path(view).name}" title="interactive figure" height="520" width="100%"></iframe>'
                )
                output["data"] = {"text/markdown": frame}
    body, resources = MarkdownExporter().from_notebook_node(read, {"output_files_dir": f"{path.stem}_files"})
    body = re.sub(r"<table.*?</table>", lambda found: scrolling(found[0]), body, flags=re.DOTALL)
    pictures = {f"notebooks/{name}": content for name, content in resources.get("outputs", {}).items()}
    place = str(path.relative_to(paths.root()))
    return made | pictures | {f"notebooks/{path.stem}.md": f"{body}\n{origin(place)}"}
