"""A small release, as objects that a test can break before writing them."""

import json
from dataclasses import dataclass, field

import pytest

from study.data import prepare, synthetic
from study.data.dataset import load

SERVER = {"url": "u", "description": "d", "author": "a", "stars_count": 3, "watching_count": 0, "activity": 1}
SERVER |= {"license": "MIT license", "language": "Python, Shell", "category": "dev-tools", "subcategory": "S"}
SERVER |= {"system": None, "official": "official", "tools": None, "origin": "o", "web_url": None}
TASK = {"id": 1, "name": "T", "description": "do", "language": "Go", "category": "C", "subcategory": "S", "theme": "X"}


@dataclass
class Release:
    """Raw files in the making: 5 servers (ids 10, 2, 3, 4, 5 in file order) and 3 tasks."""

    servers: list = field(default_factory=list)
    tasks: list = field(default_factory=list)
    labels: str = 'task_id,mcp_ids\n1,"[10, 2, 3, 10]"\n2,"[4, 0, 5, 0]"\n3,"[2]"\n'
    all_labels: str | None = None

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mcp_raw.json").write_text(json.dumps(self.servers), encoding="utf-8")
        (folder / "task_raw.json").write_text(json.dumps([{"task_raw": task} for task in self.tasks]), encoding="utf-8")
        (folder / "mcp_task.csv").write_text(self.labels, encoding="utf-8")
        if self.all_labels is not None:
            (folder / "mcp_task_all.csv").write_text(self.all_labels, encoding="utf-8")
        return folder


@pytest.fixture
def release():
    servers = [SERVER | {"id": number, "name": f"N{number}"} for number in (10, 2, 3, 4, 5)]
    servers[1] |= {"category": "Dev Tools", "language": None, "license": None, "official": "non-official"}
    themes = ("Real Estate", "Real estate", "Z")
    return Release(servers, [TASK | {"id": number, "theme": theme} for number, theme in enumerate(themes, start=1)])


@pytest.fixture(scope="session")
def synthetic_raw(tmp_path_factory):
    return synthetic.generate(tmp_path_factory.mktemp("synthetic") / "raw")


@pytest.fixture(scope="session")
def synthetic_data(synthetic_raw, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare.prepare("synthetic", synthetic_raw, folder)
    return load("synthetic", folder)
