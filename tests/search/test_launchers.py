"""The lines of docs/scaling.md that start workers through a launcher, run as they stand but for names and sizes."""

import gc
import json
import os
import re

import pandas as pd
import pytest

from tests.tiny_study import REPOSITORY, TINY

DOCUMENT = REPOSITORY / "docs" / "scaling.md"


def documented(launcher, *changes):
    """The Python lines that import the launcher, with every change made at least once."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.S)
    (code,) = [block for block in blocks if f"import {launcher}\n" in block]
    for old, new in (('"dataset=task2mcp"', ", ".join(map(repr, TINY))), *changes):
        assert old in code, old
        code = code.replace(old, new)
    return code


def require_shared(root):
    """The sweep is whole, every point ran once, and its trials ran in one or two other processes."""
    table = pd.read_csv(root / "results/synthetic/sweeps/temperature/trials.csv")[["training.temperature", "seed"]]
    assert sorted(map(tuple, table.to_numpy())) == [(0.07, 1), (0.07, 2), (0.5, 1), (0.5, 2)]
    journal = (root / ".cache/sweeps/synthetic/temperature/trials.log").read_text().splitlines()
    attributes = [json.loads(line).get("user_attr", {}) for line in journal]
    workers = {found["worker"] for found in attributes if "worker" in found}
    assert 1 <= len(workers) <= 2  # on a busy machine the first may be done before the second has started
    assert os.getpid() not in workers


@pytest.mark.slow
def test_documented_submitit_lines_share_a_sweep(tiny, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="submitit is not installed")
    monkeypatch.chdir(tmp_path)
    changes = (('cluster="slurm"', 'cluster="local"'), ("range(8)", "range(2)"), ("timeout_min=240", "timeout_min=5"))
    code = documented("submitit", *changes)
    exec(compile(code, str(DOCUMENT), "exec"), {})
    require_shared(tiny)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # Ray leaves its own logs open, and processes to the system
def test_documented_ray_lines_share_a_sweep(tiny, tmp_path, monkeypatch):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.chdir(tmp_path)
    changes = (('address="auto"', "num_cpus=2"), ("ray.remote(num_cpus=2", "ray.remote(num_cpus=1"))
    code = documented("ray", *changes, ("range(8)", "range(2)"))
    try:
        exec(compile(code, str(DOCUMENT), "exec"), {})
    finally:
        ray.shutdown()
        gc.collect()
    require_shared(tiny)
