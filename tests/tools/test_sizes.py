"""What a search costs by the number of tools: the catalogues measured, and the columns of the table."""

import numpy as np
import pytest

from study.tools import sizes
from study.tools.catalogues.catalog import tool_keys
from tests.tools.test_results import QUERIES


def test_sizes_of_real_tools_and_copies(catalog):
    assert sizes.sized(catalog, 3).tools == catalog.tools[:3]
    grown = sizes.sized(catalog, 12)
    assert grown.tools[:5] == catalog.tools
    assert [tool.name for tool in grown.tools[5:10]] == [tool.name for tool in catalog.tools]
    assert len({tool.description for tool in grown.tools[5:]}) == 7
    assert len(set(tool_keys(grown))) == 12
    joined = sizes.real_tools([lambda: catalog, lambda: catalog], 4)
    assert [tool.name for tool in joined.tools] == [tool.name for tool in catalog.tools[:4]]


def test_every_size_is_measured(toy, catalog, embedder, monkeypatch):
    monkeypatch.setattr(sizes.sentence, "encode", lambda texts, store=True: embedder.encode(texts))
    monkeypatch.setattr(sizes, "_cold", lambda root, name, query: {"cold_s": float((root / "conf").is_dir())})
    found = sizes.sizes_table(catalog, QUERIES, (2, 8)).frame.set_index("tools")
    assert found["synthetic"].to_dict() == {2: 0, 8: 3}
    assert np.isnan(found.loc[8, "index_cpu_s"])
    assert (found[["find_p50_ms", "find_cpu_p95_ms", "file_mib"]] > 0).all(axis=None)
    assert found["cold_s"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("name", ["toy", "nothing"])
def test_a_cold_start_runs_the_command_or_tells_of_its_failure(toy, catalog, name):
    with sizes._project() as root:
        sizes.save_catalog(root / "data" / "tools" / "toy.json", catalog)
        if name == "nothing":
            with pytest.raises(sizes.subprocess.CalledProcessError):
                sizes._cold(root, name, "read a file")
        else:
            assert sizes._cold(root, name, "read a file")["cold_mib"] > 10
