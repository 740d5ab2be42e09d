"""Rows as tests need them, written into the store of the root that is in force."""

import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from study.base import paths
from study.runner import row_store
from study.runner.row_store import Row

KEYS = {"task_id": 1, "seed": 1}
BARE = {"git": {"commit": None, "dirty": None}, "versions": {"python": "3.11"}, "hardware": {"cores": 1}}


def put_row(dataset: str, protocol: str, system: str, per_task=None, top10=None, record=None) -> None:
    """Write a row; parts that are not named hold one task, with nothing found, and a record without facts."""
    values = per_task if per_task is not None else pd.DataFrame([KEYS | {"ndcg@10": 0.0}])
    tops = top10 if top10 is not None else pd.DataFrame([KEYS | {"rank": 1, "server_id": 1}])
    about = BARE | {"dataset": dataset, "protocol": protocol, "system": system, "seeds": []} | (record or {})
    # Some tests have another folder of results alone.
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "cache", lambda: Path(folder))
        row_store.write_rows(dataset, {(protocol, system): Row(values, tops, about)})


def change_row(dataset: str, protocol: str, system: str, **parts: Any) -> None:
    """Write a row again with other parts (`put_row`)."""
    put_row(dataset, protocol, system, **(row_store.read_row(dataset, protocol, system)._asdict() | parts))
