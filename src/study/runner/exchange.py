"""Runs and splits in the forms of other programs: TREC run files with ir_metadata, RecBole's atomic files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
import yaml
from omegaconf import DictConfig

from study.data.dataset import Dataset
from study.data.splits import PARTS
from study.errors import StudyError
from study.files import write_text
from study.runner import row_store
from study.runner.inputs import load_inputs
from study.runner.provenance import IDENTITY

START, END = "# ir_metadata.start", "# ir_metadata.end"
TASK, SERVER = "task_id", "server_id"
# Columns of the prepared tables that become fields of RecBole, whose types are its own.
FIELDS = {"language": "token", "category": "token", "subcategory": "token"}


def export_runs(config: DictConfig, folder: Path, systems: Sequence[str] = ()) -> list[Path]:
    """Write the reported top tens of a data set and a protocol as TREC runs, one file for each system and seed.

    ``runs/<system>-<seed>.trec`` has a head of comments by ir_metadata (Breuer et al., SIGIR 2022), which
    `repro_eval` reads; ``qrels.txt`` has the labels of the test part.

    `systems`: only these; empty means every system with a run.
    Returns: the files.
    Raises StudyError: no such run, or the protocol keeps hits alone, which are no ranking.
    """
    dataset, protocol = config.dataset.name, config.protocol.name
    data, split = load_inputs(dataset, protocol)
    chosen = systems or [system for name, system in row_store.list_rows(dataset) if name == protocol]
    written = [folder / "qrels.txt"]
    write_text(written[0], "".join(f"{task} 0 {server} 1\n" for task, server in _pairs(data, split.test)))
    for system in chosen:
        _, top10, record = row_store.read_row(dataset, protocol, system)
        for seed, run in top10.groupby("seed"):
            if not (run.groupby(TASK)["rank"].max() == run.groupby(TASK)["rank"].size()).all():
                fix = "name a protocol whose runs are kept whole: protocol=cold"
                raise StudyError(f"of {protocol} hits alone are kept", column="rank", fix=fix)
            tag = f"{system}-{seed}"
            rows = run[[TASK, SERVER, "rank"]].to_numpy(np.int64)
            lines = [f"{task} Q0 {server} {rank} {-rank} {tag}" for task, server, rank in rows.tolist()]
            written.append(folder / "runs" / f"{tag}.trec")
            write_text(written[-1], "\n".join([START, *_head(tag, record), END, *lines, ""]))
    return written


def _head(tag: str, record: dict[str, Any]) -> list[str]:
    """The lines of a run's metadata, from its record, by the sections of ir_metadata."""
    machine, system = record["hardware"], record["config"]["system"]
    about = {
        "tag": tag,
        "platform": {
            "hardware": {
                "cpu": {"model": machine["processor"], "number of cores": machine["cores"]},
                "ram": f"{machine['memory_gib']} GB",
            },
            "software": {"libraries": [f"{name}=={version}" for name, version in record["versions"].items()]},
        },
        "implementation": {"source": {"lang": "python", "commit": record["git"]["commit"]}},
        "method": {
            "automatic": True,
            "retrieval": [
                {"name": system["title"], "method": system["model"]["_target_"], "settings": system["model"]}
            ],
            "reproducibility": {name: record[name] for name in ("profile", *IDENTITY)},
        },
        "data": {"test collection": {"name": record["dataset"], "split": record["protocol"]}},
    }
    text = yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=10**6)
    return [f"# {line}" for line in text.splitlines()]


def export_splits(config: DictConfig, folder: Path) -> list[Path]:
    """Write every split of a data set as RecBole's atomic files (Zhao et al., CIKM 2021).

    ``<dataset>-<protocol>/`` holds ``.train.inter``, ``.valid.inter`` and ``.test.inter`` by ids, and ``.user`` and
    ``.item`` with all tasks and servers, so that all servers are candidates. RecBole reads them with
    ``benchmark_filename: [train, valid, test]``.

    Returns: the files.
    """
    written = []
    for protocol in config.dataset.protocols:
        data, split = load_inputs(config.dataset.name, protocol)
        name = f"{config.dataset.name}-{protocol}"
        texts = {f"{part}.inter": _interactions(data, split.part(part)) for part in PARTS}
        texts |= {"user": _attributes(data.tasks, TASK), "item": _attributes(data.servers, SERVER)}
        for ending, text in texts.items():
            written.append(folder / name / f"{name}.{ending}")
            write_text(written[-1], text)
    return written


def _pairs(data: Dataset, part: sp.csr_matrix) -> list[list[int]]:
    """The ids of the tasks and servers of a matrix, by task."""
    rows, columns = part.nonzero()
    ids = (data.tasks["id"].to_numpy()[rows], data.servers["id"].to_numpy()[columns])
    found: list[list[int]] = np.stack(ids, axis=1).tolist()
    return found


def _interactions(data: Dataset, part: sp.csr_matrix) -> str:
    lines = [f"{task}\t{server}" for task, server in _pairs(data, part)]
    return "\n".join([f"{TASK}:token\t{SERVER}:token", *lines, ""])


def _attributes(frame: pd.DataFrame, key: str) -> str:
    """Ids and attributes; the words of an attribute are separated by single spaces."""
    fields = {name: kind for name, kind in FIELDS.items() if name in frame}
    head = "\t".join([f"{key}:token", *(f"{name}:{kind}" for name, kind in fields.items())])
    columns = [frame["id"].astype(str), *(frame[name].astype(str).str.split().str.join(" ") for name in fields)]
    return "\n".join([head, *("\t".join(row) for row in zip(*columns, strict=True)), ""])
