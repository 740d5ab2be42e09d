"""The files that archives and indexes read, each by its own reader."""

import pandas as pd
import pytest
import yaml

import study
from study.judging.croissant import export_croissant
from tests.tiny_study import REPOSITORY as ROOT
from tests.tiny_study import rooted


def test_the_citation_names_this_version_and_the_preprint_with_its_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert str(citation["version"]) == study.__version__
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["He", "Chen", "Zhao", "Zhang", "Mo", "Ma"]
    assert paper["identifiers"][0]["value"] == "arXiv:2604.17234"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_croissant_describes_every_result_table_and_its_records_are_their_rows(tmp_path):
    import mlcroissant  # takes seconds

    tables = {"tables/overall.csv": pd.read_csv, "rows/useful/cold/top10.parquet": pd.read_parquet}
    names = {*tables, "tables/metrics.csv.xz", "audit/verdicts.csv"}
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
    for table, read in tables.items():
        found = pd.DataFrame(described.records(record_set=f"rows/{table}"))
        expected = read(path.parent / table)
        assert [name.removeprefix(f"rows/{table}/") for name in found] == list(expected)
        assert len(found) == len(expected)
        first, row = (frame.iloc[0].tolist() for frame in (found, expected))
        assert [value.decode() if isinstance(value, bytes) else value for value in first] == row
