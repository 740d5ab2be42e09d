"""MCP-Flow's public samples, counted."""

import os
from types import SimpleNamespace

import pytest
import yaml

from study import paths
from study.data import sources
from study.tools.catalogues import livemcpbench, published
from study.tools.flow import experiments, samples, settings, tables
from study.tools.flow.samples import Call, measures
from study.tools.flow.slot_filler import SlotFiller

pytestmark = [
    pytest.mark.mirror,
    pytest.mark.skipif(not os.environ.get("T2M_MIRROR"), reason="T2M_MIRROR names no mirror of the public data"),
]


def fetched(name, folder):
    config = yaml.safe_load((paths.conf() / f"dataset/{name}.yaml").read_text())
    return sources.fetch(name, config, folder=folder / name)


def test_public_samples(tmp_path):
    folder = fetched("mcpflow", tmp_path)
    loaded, flow = published.load_mcpflow(folder), settings.flow_settings()
    found, left_out = samples.load_samples(folder, loaded)
    assert (len(found), left_out) == (1827, 10)
    assert (len({one.tool for one in found}), len({one.server for one in found})) == (82, 12)
    turns = {name: samples.folds(found, name, flow.splits, 0) for name in experiments.SPLITS}
    tested = {name: sum(len(turn.test) for turn in own) for name, own in turns.items()}
    assert tested == {"seen": 1827, "unseen_tool": 1740, "unseen_server": 1827}
    # No call of another group is the same call: copying one with its whole group left out can never be right.
    apart = {(one.tool, one.group): one.arguments for one in found}
    right = [
        measures(Call(tool, other), tool, arguments)["ast"]
        for (tool, group), arguments in apart.items()
        for (tool_of_other, group_of_other), other in apart.items()
        if tool == tool_of_other and group != group_of_other
    ]
    assert sum(right) == 0
    assert all(tables.rows_of(loaded.catalog, ids) for ids in flow.servers.values())
    # Required parameters alone are the exact argument set of 77 % of the calls.
    exact = [
        {p.name for p in loaded.catalog.tools[one.tool].parameters if p.required} == set(one.arguments) for one in found
    ]
    assert sum(exact) / len(exact) == pytest.approx(0.772, abs=0.005)


def test_arguments_of_tools_that_were_never_seen(tmp_path):
    """The slot filler on everyday instructions for tools of LiveMCPBench, of whose servers it has no example."""
    folder, flow = fetched("mcpflow", tmp_path), settings.flow_settings()
    loaded = published.load_mcpflow(folder)
    found, _ = samples.load_samples(folder, loaded)
    bench = SimpleNamespace(catalog=loaded.catalog, samples=found)
    # Without the filters, which need every text's vector; a quarter of the instructions answers alike in less time.
    made, _ = experiments.synthetic(bench, flow)
    other = livemcpbench.load_livemcpbench(fetched("livemcpbench", tmp_path)).catalog
    slot_filler = SlotFiller(loaded.catalog, flow.copying).fit(found[::4], made[::4]).of(other)

    def fill(tool, text):
        wanted = [p.name for p in other.tools[other.rows_by_name[tool][0]].parameters if p.required]
        given = slot_filler.fill(text, other.rows_by_name[tool][0])
        return {name: given[name] for name in wanted}

    assert fill("read_file", "read the file /home/ann/report.txt") == {"path": "/home/ann/report.txt"}
    text = "convert /tmp/a.docx to a pdf file called b.pdf"
    assert fill("docx_to_pdf", text) == {"inputPath": "/tmp/a.docx", "outputPath": "b.pdf"}
    text = "create a git branch named fix-1 in /srv/repo"
    assert fill("git_create_branch", text) == {"branch_name": "fix-1", "repo_path": "/srv/repo"}
