"""MCP-Flow's public samples, counted."""

import os

import pytest
import yaml

from study import paths
from study.data import sources
from study.tools.catalogues import mcpflow
from study.tools.flow import experiments, samples, servers, settings, splits
from study.tools.flow.calls import Call, measures

pytestmark = [
    pytest.mark.mirror,
    pytest.mark.skipif(not os.environ.get("T2M_MIRROR"), reason="T2M_MIRROR names no mirror of the public data"),
]


def test_public_samples(tmp_path):
    config = yaml.safe_load((paths.conf() / "dataset/mcpflow.yaml").read_text())
    folder = sources.fetch("mcpflow", config, folder=tmp_path)
    loaded, flow = mcpflow.load(folder), settings.load()
    found, left_out = samples.load(folder, loaded)
    assert (len(found), left_out) == (1827, 10)
    assert (len({one.tool for one in found}), len({one.server for one in found})) == (82, 12)
    turns = {name: splits.folds(found, name, flow.splits, 0) for name in experiments.SPLITS}
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
    assert all(servers.rows_of(loaded.catalog, ids) for ids in flow.servers.values())
