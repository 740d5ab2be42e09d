"""The files that archives and indexes read: each by its own reader, and all of them in agreement."""

import jsonschema
import pandas as pd
import pytest
import yaml

import study
from study.judging.croissant import export_croissant
from tests.tiny_study import REPOSITORY as ROOT
from tests.tiny_study import rooted

AUTHORS = ["He", "Chen", "Zhao", "Zhang", "Mo", "Ma"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PERSON = {"type": "object", "required": ["family-names", "given-names"]}
# What the schema of CITATION.cff 1.2.0 demands of a file and of a reference.
CFF = {
    "type": "object",
    "required": ["cff-version", "message", "title", "authors"],
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "type": {"enum": ["software", "dataset"]},
        "references": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["authors", "title", "type"],
                "properties": {"authors": {"type": "array", "items": PERSON, "minItems": 6}},
            },
        },
    },
}


def test_citation_names_all_authors_and_the_preprint():
    jsonschema.validate(CITATION, CFF)
    (paper,) = CITATION["references"]
    assert [author["family-names"] for author in paper["authors"]] == AUTHORS
    assert paper["identifiers"][0]["value"] == "arXiv:2604.17234"


def test_the_version_cited_is_that_of_the_package():
    assert str(CITATION["version"]) == study.__version__


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_describes_every_result_table_and_its_records_are_their_rows(tmp_path):
    import mlcroissant  # takes seconds, and the other tests do without it

    names = {
        "tables/overall.csv",
        "tables/metrics.csv.xz",
        "rows/useful/cold/top10.parquet",
        "audit/verdict_summary.csv",
    }
    for name in names:
        copy = tmp_path / "results/task2mcp" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / "results/task2mcp" / name).read_bytes())
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    with rooted(tmp_path):
        path = export_croissant("task2mcp", tmp_path / "results/task2mcp")
    described = mlcroissant.Dataset(jsonld=str(path))
    assert (described.metadata.issues.errors, described.metadata.issues.warnings) == (set(), set())
    assert {file.name for file in described.metadata.distribution} == names
    for table, read in (("tables/overall.csv", pd.read_csv), ("rows/useful/cold/top10.parquet", pd.read_parquet)):
        found = pd.DataFrame(described.records(record_set=f"rows/{table}"))
        expected = read(path.parent / table)
        assert [name.removeprefix(f"rows/{table}/") for name in found] == list(expected)
        assert len(found) == len(expected)
        first, row = (frame.iloc[0].tolist() for frame in (found, expected))
        assert [value.decode() if isinstance(value, bytes) else value for value in first] == row
