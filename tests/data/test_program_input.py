"""What the authors' program is given: the released files in its form."""

import pandas as pd

from study.data import program_input


def test_two_servers_and_two_tasks_by_hand(release, tmp_path):
    release.servers, release.tasks = release.servers[:2], release.tasks[1::-1]  # ids 10 and 2; 2 and 1
    release.servers[0] |= {"name": "one, two"}
    release.servers[1] |= {"name": "null"}
    release.labels = 'task_id,mcp_ids\n2,"[10, 0, 10]"\n1,"[2, 10, 2, 10, 2, 10, 2, 10, 2, 10, 2]"\n'
    raw = release.write(tmp_path / "raw")
    counts = program_input.convert(raw, tmp_path, labels="mcp_task.csv").set_index("file")
    servers, tasks, wide = (pd.read_csv(tmp_path / name) for name in ("mcp_raw.csv", "task.csv", "mcp_task.csv"))
    assert servers["num"].tolist() == [10, 2]
    assert servers["name"][0] == "one, two"
    assert servers["language"].isna().tolist() == [False, True]
    assert tasks[["task_id", "theme"]].to_numpy().tolist() == [[2, "Real estate"], [1, "Real Estate"]]
    assert list(wide) == ["task_id", *(f"mcp{rank}" for rank in range(1, 12))]
    assert wide.iloc[0].dropna().tolist() == [2, 10, 0, 10]
    assert program_input.read_wide(tmp_path / "mcp_task.csv") == {2: {10, 0}, 1: {2, 10}}
    # pandas takes the name "null" for nothing; an absent language is no change.
    assert counts["altered"].tolist() == [1, 0, 0]
    assert counts["rows"].tolist() == [2, 2, 2]
