"""Runs and splits in the forms of other programs: TREC run files, RecBole's atomic files."""

from collections.abc import Sequence
from csv import QUOTE_NONE
from pathlib import Path

import pandas as pd
import scipy.sparse as sp
from omegaconf import DictConfig

from study.base.errors import StudyError
from study.base.files import write_text
from study.data.dataset import Dataset
from study.data.splits import PARTS
from study.runner import row_store
from study.runner.inputs import load_inputs

TASK, SERVER = "task_id", "server_id"
FIELDS = ("language", "category", "subcategory")  # columns of the prepared tables that become fields of RecBole


def trec_run(run: pd.DataFrame, tag: str) -> str:
    """The lines of a TREC run: task, Q0, server, rank, score (minus the rank), tag. `run`: task_id, server_id, rank."""
    rows = run[[TASK, SERVER, "rank"]].to_numpy("int64").tolist()
    return "".join(f"{task} Q0 {server} {rank} {-rank} {tag}\n" for task, server, rank in rows)


def export_runs(config: DictConfig, folder: Path, systems: Sequence[str] = ()) -> list[Path]:
    """Write the top tens of a data set and a protocol as ``runs/<system>-<seed>.trec``, and the test labels as
    ``qrels.txt``. `systems`: only these; empty means every system with a run. Returns: the files.
    Raises StudyError: no such run, or the protocol keeps hits alone, which are no ranking."""
    dataset, protocol = config.dataset.name, config.protocol.name
    if protocol in row_store.HITS_ONLY:
        raise StudyError(f"of {protocol} hits alone are kept", column="protocol", fix="try protocol=cold")
    data, split = load_inputs(dataset, protocol)
    texts = {"qrels.txt": "".join(f"{task} 0 {server} 1\n" for task, server in _pairs(data, split.test).to_numpy())}
    for system in systems or [system for _, system in row_store.list_rows(dataset, protocol)]:
        for seed, run in row_store.read_row(dataset, protocol, system).top10.groupby("seed"):
            texts[f"runs/{system}-{seed}.trec"] = trec_run(run, f"{system}-{seed}")
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def export_splits(config: DictConfig, folder: Path) -> list[Path]:
    """Write every split of a data set as RecBole's atomic files (Zhao et al., CIKM 2021), which it reads with
    ``benchmark_filename: [train, valid, test]``; all servers are candidates. Returns: the files."""
    written = []
    for protocol in config.dataset.protocols:
        data, split = load_inputs(config.dataset.name, protocol)
        name = f"{config.dataset.name}-{protocol}"
        tables = {f"{part}.inter": _pairs(data, split.part(part)) for part in PARTS}
        tables |= {"user": _attributes(data.tasks, TASK), "item": _attributes(data.servers, SERVER)}
        for ending, table in tables.items():
            written.append(folder / name / f"{name}.{ending}")
            write_text(written[-1], table.add_suffix(":token").to_csv(sep="\t", index=False, quoting=QUOTE_NONE))
    return written


def _pairs(data: Dataset, part: sp.csr_matrix) -> pd.DataFrame:
    """The ids of the tasks and servers of a matrix, by task."""
    rows, columns = part.nonzero()
    return pd.DataFrame({TASK: data.tasks["id"].to_numpy()[rows], SERVER: data.servers["id"].to_numpy()[columns]})


def _attributes(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """Ids and attributes; the words of an attribute are separated by single spaces."""
    fields = {name: frame[name].astype(str).str.split().str.join(" ") for name in FIELDS if name in frame}
    return pd.DataFrame({key: frame["id"], **fields})
