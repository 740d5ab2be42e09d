"""Runs and splits in the forms of other programs, read by these programs."""

import json
import os
import subprocess
import sys

import ir_measures
import numpy as np
import pandas as pd
import pytest

from study.base.errors import StudyError
from study.config.compose import load
from study.runner import exchange
from study.runner.inputs import load_inputs
from study.runner.row_store import read_row
from tests.tiny_study import REPOSITORY, TINY

# RecBole in a process of its own, since it changes numpy. Prints the ids of every part.
READ = """
import json, sys
from baselines.recbole_runner import restore_aliases
restore_aliases()
from recbole.config import Config
from recbole.data import create_dataset
folder, name = sys.argv[1:]
sys.argv = sys.argv[:1]
fields = {"inter": ["task_id", "server_id"], "user": ["task_id"], "item": ["server_id", "language"]}
settings = {"data_path": folder, "benchmark_filename": ["train", "valid", "test"], "USER_ID_FIELD": "task_id",
            "ITEM_ID_FIELD": "server_id", "load_col": fields, "state": "ERROR"}
config = Config(model="BPR", dataset=name, config_dict=settings)
data = create_dataset(config)
parts = data.build()
found = [[[data.id2token("task_id", int(task)), data.id2token("server_id", int(server))]
          for task, server in zip(part.inter_feat["task_id"], part.inter_feat["server_id"])] for part in parts]
print(json.dumps([data.user_num - 1, data.item_num - 1, found]))
"""


def test_runs_are_scored_by_another_program_as_here(shared_root, tmp_path):
    written = exchange.export_runs(load(TINY), tmp_path, ["tfidf"])
    measured = read_row("synthetic", "cold", "tfidf").per_task
    assert [path.name for path in written[1:]] == [f"tfidf-{seed}.trec" for seed in measured["seed"].unique()]
    qrels = list(ir_measures.read_trec_qrels(str(written[0])))
    run = list(ir_measures.read_trec_run(str(written[1])))
    wanted = {"ndcg@10": "nDCG(dcg='exp-log2')@10", "recall@10": "R@10", "precision@10": "P@10"}
    own = measured[measured["seed"] == measured["seed"].iloc[0]].set_index("task_id")
    for name, other in wanted.items():
        values = ir_measures.iter_calc([ir_measures.parse_measure(other)], qrels, run)
        found = pd.Series({int(value.query_id): value.value for value in values})
        np.testing.assert_allclose(found[own.index], own[name], atol=1e-5)


def test_a_missing_run_and_one_of_hits_alone_are_refused(shared_root, tmp_path):
    with pytest.raises(StudyError, match="there is no row of bm25"):
        exchange.export_runs(load(TINY), tmp_path, ["bm25"])
    with pytest.raises(StudyError, match="hits alone"):
        exchange.export_runs(load([*TINY, "protocol=warm"]), tmp_path, ["tfidf"])


@pytest.mark.slow
def test_recbole_loads_exactly_the_split(shared_root, tmp_path):
    config, protocol = load(TINY), "warm"
    written = exchange.export_splits(config, tmp_path)
    assert len(written) == 5 * len(config.dataset.protocols)
    data, split = load_inputs("synthetic", protocol)
    command = [sys.executable, "-W", "ignore", "-c", READ, str(tmp_path), f"synthetic-{protocol}"]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])}
    done = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    tasks, servers, parts = json.loads(done.stdout.splitlines()[-1])
    assert (tasks, servers) == (data.n_tasks, data.n_servers)
    for name, pairs in zip(("train", "valid", "test"), parts, strict=True):
        rows, columns = split.part(name).nonzero()
        ids = zip(data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns], strict=True)
        assert sorted(map(tuple, pairs)) == sorted((str(task), str(server)) for task, server in ids)
