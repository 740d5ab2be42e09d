"""What tests of the analyses are made of: toy data sets, synthetic ones with their truth, and a small study."""

import json
from contextlib import contextmanager

import numpy as np
import pandas as pd
import yaml

from study.base import paths
from study.data import dataset, prepare, synthetic
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, relevance_from_lists
from study.evaluation import per_task
from tests.tiny_study import lay_out, make_data, rooted

NO_REASON = {"topic_match": 0.0, "language_match": 0.0, "alphabetical": 0.0, "random": 1.0}
UNSORTED = {"ascending_share": 0.0, "duplicate_share": 0.0}


def toy(tasks, lists, n_servers, servers=None):
    """Tasks, given by what some of their fields say, with lists of server rows; ids follow the rows."""
    table = pd.DataFrame(dict.fromkeys(SERVER_FIELDS, "") | {"description": "thing"}, index=range(n_servers))
    table = table.assign(id=table.index + 1, name=[f"nameless{row}" for row in table.index], language_tokens="")
    for row, changes in (servers or {}).items():
        table.loc[row, list(changes)] = list(changes.values())
    frame = pd.DataFrame(dict.fromkeys([*TASK_FIELDS, "subcategory"], ""), index=range(len(lists)))
    frame = frame.assign(**pd.DataFrame(tasks).fillna(""))
    frame = frame.assign(id=np.arange(1, len(frame) + 1), language_tokens=frame["language"])
    frame = frame.assign(theme_clean=frame["theme"], subcategory_clean=frame["subcategory"])
    rows = tuple(np.array(row, dtype=np.int64) for row in lists)
    return Dataset("toy", table, frame, relevance_from_lists(rows, n_servers), rows)


def made(folder, **choices):
    """A synthetic data set and what was planted in it."""
    synthetic.generate(folder / "raw", **choices)
    prepare.prepare("synthetic", folder / "raw", folder / "prepared")
    return dataset.load("synthetic", folder / "prepared"), json.loads((folder / "raw" / "truth.json").read_text())


def seeded(values, metric="ndcg@10"):
    """A per-task table of the tasks 0, 1, ... from seed -> values."""
    tables = [per_task.table(range(len(row)), seed, pd.DataFrame({metric: row})) for seed, row in values.items()]
    return pd.concat(tables, ignore_index=True)


@contextmanager
def small_study(root, overrides, changes=None):
    """T2M_ROOT at a folder with prepared and split data.

    Args:
        overrides: of the configuration, the size of the synthetic data among them.
        changes: file below ``conf`` -> what is different in it.
    """
    lay_out(root)
    with rooted(root):
        for file, values in (changes or {}).items():
            change(file, **values)
        make_data(overrides)
        yield


def change(file, **values):
    """Other values for some keys of a file of ``conf``."""
    path = paths.conf() / file
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | values, sort_keys=False))
