"""Files and commands that README and docs name exist, and pages say what the tables say."""

import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

from study.analysis.report.pages import Numbers, render, stale
from study.base.errors import StudyError
from study.cli.main import app
from tests.tiny_study import REPOSITORY

PATHS = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
DOCUMENTS = {str(path.relative_to(REPOSITORY)): path.read_text() for path in PATHS}
TEXT = "\n".join(DOCUMENTS.values())
CODE = re.compile(r"```(?:ba)?sh\n.*?```|`[^`\n]+`", re.DOTALL)
# Pages about files that their reader writes.
OWN_FILES = ("docs/extending.md",)
TRACKED = re.compile(r"`((?:conf|src|baselines|tests|docs|notebooks|results|figures)/[\w./-]*)`")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    linked = [(REPOSITORY / name).parent / path for path in re.findall(r"\]\(([\w./-]+)\)", DOCUMENTS[name])]
    named = [] if name in OWN_FILES else [REPOSITORY / path for path in TRACKED.findall(DOCUMENTS[name])]
    assert [str(path) for path in linked + named if not path.exists()] == []


def test_commands_options_and_targets_that_documents_name_exist() -> None:
    lines = [line.strip("`") for code in CODE.findall(TEXT) for line in code.splitlines()]
    commands, targets = get_command(app), set(re.findall(r"(?m)^([\w-]+):", (REPOSITORY / "Makefile").read_text()))
    assert isinstance(commands, Group)
    named = checked = 0
    for line in lines:
        line = line.partition("#")[0]
        for part in re.split(r"\|\||&&|[|;]", line):
            if match := re.match(r"\s*(?:\w+=\S+ )*make ([a-z][\w-]*)", part):
                assert match[1] in targets, line
            words = re.sub(r"^\s*(?:\w+=\S+ )*", "", part).split()
            if words[:1] != ["study"] or len(words) < 2:
                continue
            named += words[1].isalpha()
            command = commands.commands[words[1]]
            # What follows a group's name is a command of it; elsewhere it is an argument, such as `dataset=task2mcp`.
            if isinstance(command, Group) and len(words) > 2 and re.fullmatch("[a-z][a-z-]*", words[2]):
                command = command.commands[words[2]]
            known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
            for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", part):
                assert option in known | {"--help"}, line
                checked += 1
    assert named >= 20
    assert checked >= 30


MARK = re.compile(r"([+-]?[0-9][0-9.,]*)<!--#(\w+)-->")


def matches(typed: str, value: float) -> bool:
    """Whether a typed number is the value, rounded to the digits typed."""
    plain = typed.replace(",", "")
    return abs(float(plain) - value) <= 0.5 * 10.0 ** -len(plain.partition(".")[2]) + 1e-9


def test_pages_and_notebooks_say_what_the_tables_say():
    assert not stale(render()), "run: study docs"
    numbers = Numbers()
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "docs" / "src").glob("*.j2"))
    used = set(re.findall(r'(?:cell|ci|value)\("(\w+)"', sources))
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        texts = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
        for typed, name in MARK.findall("\n".join(texts)):
            assert matches(typed, numbers.value(name)), f"{path.name} says {typed} of {name}"
            used.add(name)
    whole = {re.sub("_(low|high)$", "", name) for name in used} | used
    assert not [name for name in numbers.entries if not {name, re.sub("_(low|high)$", "", name)} & whole], "spare names"


@pytest.fixture
def small(new_root: Path) -> Path:
    folder = new_root / "docs" / "src"
    folder.mkdir(parents=True)
    table = pd.DataFrame([["cold", "a", "ndcg", 10, 0.1666, 0.1, 0.2], ["cold", "b", "ndcg", 10, -0.0001, -1, 1234.5]])
    table.columns = ["protocol", "system", "metric", "k", "mean", "ci_low", "ci_high"]
    (new_root / "results" / "task2mcp" / "tables").mkdir(parents=True)
    table.to_csv(new_root / "results" / "task2mcp" / "tables" / "overall.csv", index=False)
    entry = "{file: task2mcp/tables/overall.csv, where: {mean: '<0.1'}, "
    (folder / "numbers.yaml").write_text(f"most: {entry}sum: ci_high, times: 2}}\nhow_many: {entry}count: true}}\n")
    return folder


def test_a_page_shows_cells_and_intervals_and_a_changed_table_makes_it_old(small: Path):
    template = '{{ ci("cold/a/ndcg@10") }} {{ cell("cold/b/ndcg@10") }} {{ cell("most", 1) }} {{ cell("how_many") }}\n'
    template += '{% for row in rows("task2mcp/tables/overall.csv", system="b") %}{{ row.mean }}{% endfor %}\n'
    (small / "page.md.j2").write_text(template)
    pages = render()
    page = small.parent / "page.md"
    assert pages == {page: "0.167 [0.100, 0.200] 0.000 2,469.0 1\n-0.0001"}
    assert stale(pages) == [page]
    page.write_text(pages[page])
    assert not stale(render())
    table = small.parents[1] / "results" / "task2mcp" / "tables" / "overall.csv"
    table.write_text(table.read_text().replace("0.1666", "0.1676"))
    assert stale(render()) == [page]


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ('{{ cell("nobody") }}', "nobody"),
        ('{{ cell("cold/nobody/ndcg@10") }}', "cold/nobody"),
        ("{{ cell( }}", "line 1"),
        ("{{ nothing }}", "nothing"),
    ],
)
def test_a_broken_template_is_named(small: Path, template: str, named: str):
    (small / "page.md.j2").write_text(template)
    with pytest.raises(StudyError) as error:
        render()
    assert named in str(error.value)


def test_check_writes_nothing_and_fails(small: Path, call):
    (small / "page.md.j2").write_text('{{ cell("how_many") }}')
    assert call("docs", "--check")[0] == 1
    assert not (small.parent / "page.md").exists()
    assert call("docs")[0] == 0
    assert (small.parent / "page.md").read_text() == "1"
