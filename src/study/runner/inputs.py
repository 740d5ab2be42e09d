"""What a row is made from: the prepared data set and the split."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.registry import system_file
from study.base.settings import read_yaml
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset
from study.data.splits import Split


def split_file(dataset: str, protocol: str) -> Path:
    """Where the split of a protocol lies, there or not. Raises StudyError: the data set has no such protocol."""
    path = paths.splits(dataset) / f"{protocol}.parquet"
    settings = paths.conf() / "dataset" / f"{dataset}.yaml"
    if not path.exists() and settings.exists() and protocol not in read_yaml(settings).get("protocols", []):
        fix = f"add {protocol} to it, then run: study split dataset={dataset}"
        raise StudyError(f"{dataset} has no protocol {protocol}", file=settings, column="protocols", fix=fix)
    return path


def load_inputs(dataset: str, protocol: str) -> tuple[Dataset, Split]:
    """The prepared data set and the split of a protocol. Raises StudyError: a file is missing or damaged."""
    path = split_file(dataset, protocol)
    data = datasets.load(dataset)
    if not data.relevance.nnz:
        labels = paths.prepared(dataset) / "labels.parquet"
        raise StudyError("no task has a label", file=labels, fix=f"run: study prepare dataset={dataset}")
    return data, splits.load(require_file(path, f"run: study split dataset={dataset}", "the split is missing"), data)


def require_applicable(config: DictConfig) -> None:
    """Raise unless the configured protocol applies to the configured system."""
    name, protocol, applicable = config.system.name, config.protocol.name, config.system.protocols
    if protocol not in applicable:
        fix = f"its protocols are: {', '.join(applicable)}"
        raise StudyError(f"{name} is not applicable under {protocol!r}", file=system_file(name), fix=fix)
