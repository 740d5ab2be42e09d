"""Schemas of tools: where a reference leads."""

import pytest

from study.advisor.retrieval.documents import resolve

DOCUMENT = {"$defs": {"a/b": [{"type": "string"}, {"$ref": "#/$defs/a~1b/0"}], "loop": {"$ref": "#/$defs/loop"}}}


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("#/$defs/a~1b/0", {"type": "string"}),
        ("#/$defs/a~1b/1", {"type": "string"}),
        ("#/$defs/a~1b/2", None),  # behind the end
        ("#/$defs/a~1b/x", None),
        ("#/$defs/loop", None),
        ("https://example.org/schema", None),
    ],
)
def test_a_reference_leads_to_a_part_of_the_document_or_nowhere(pointer, found):
    assert resolve({"$ref": pointer}, DOCUMENT) == found
