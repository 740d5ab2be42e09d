"""The file that archives and indexes read."""

import yaml

import study
from tests.tiny_study import REPOSITORY as ROOT


def test_the_citation_names_this_version_and_the_preprint_with_its_authors():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert str(citation["version"]) == study.__version__
    (paper,) = citation["references"]
    assert [author["family-names"] for author in paper["authors"]] == ["He", "Chen", "Zhao", "Zhang", "Mo", "Ma"]
    assert paper["identifiers"][0]["value"] == "arXiv:2604.17234"
