"""The notebooks as they stand in the repository: thin, stripped, and with one cell of literal parameters."""

import ast
import re

import nbformat
import pytest

from study.analysis.notebooks import normalise
from tests.tiny_study import REPOSITORY

SOURCES = sorted((REPOSITORY / "notebooks").glob("[0-9]*.ipynb"))
# A function in a notebook may draw; anything longer belongs in the package, where it is typed and tested.
LONGEST_FUNCTION = 5


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return nbformat.read(request.param, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_is_stripped_and_has_stable_identifiers_and_no_path_of_a_machine(source):
    for cell in code(source):
        assert cell.outputs == []
        assert cell.execution_count is None
    before = nbformat.writes(source)
    assert nbformat.writes(normalise(source)) == before
    for cell in source.cells:
        assert not re.search(r"(?<![\w.])/(home|work|tmp|Users|root)/", cell.source)


def test_begins_with_a_title_and_a_purpose_and_its_sections_are_numbered_with_the_references_last(source):
    title, _, purpose = source.cells[0].source.partition("\n\n")
    assert source.cells[0].cell_type == "markdown"
    assert re.fullmatch(r"# \S.*", title)
    assert len(purpose.split()) > 20
    texts = "\n".join(cell.source for cell in source.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (.+)$", texts, flags=re.MULTILINE)
    assert headings[-1] == "References"
    assert [heading.split(".")[0] for heading in headings[:-1]] == [str(i) for i in range(1, len(headings))]


def test_one_cell_holds_the_parameters_and_only_literals(source):
    cells = [cell for cell in code(source) if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1
    statements = ast.parse(cells[0].source).body
    assert all(isinstance(statement, ast.Assign) for statement in statements)
    names = {statement.targets[0].id: ast.literal_eval(statement.value) for statement in statements}
    assert names["dataset"] in ("synthetic", "task2mcp")


def test_has_no_long_function_and_no_training_and_ends_with_cells_that_assert_values(source):
    for cell in code(source):
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                assert node.end_lineno - node.lineno < LONGEST_FUNCTION, node.name
        assert "study.t2mrec.module" not in cell.source
    last = code(source)[-1]
    asserted = [node for node in ast.walk(ast.parse(last.source)) if isinstance(node, ast.Assert)]
    assert len(asserted) >= 4


def test_measured_numbers_in_text_cells_name_their_cell_of_a_table(source):
    # `0.167<!--#key-->` is compared with its cell by the test of docs/numbers; "5.3" names a section.
    for cell in source.cells:
        if cell.cell_type == "markdown" and "## References" not in cell.source:
            text = re.sub(r"`[^`]*`|[\d.,]+<!--#\w+-->( %)?", "", cell.source)
            # A round share or hundredth is a threshold.
            assert not re.search(r"\d+\.\d{3,}|\d\.\d+ %", text), cell.source
