"""What a row is made from: the prepared data set and the split."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.registry import system_file
from study.base.settings import read_yaml
from study.data import dataset as datasets
from study.data import splits
from study.data.dataset import Dataset
from study.data.splits import Split

POOL = "system.model.scoring.pool"  # K2 of T2MRec and its variants


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
        labels, again = paths.prepared(dataset) / "labels.parquet", f"run: study prepare dataset={dataset}"
        raise StudyError("no task has a label", file=labels, fix=again)
    return data, splits.load(require_file(path, f"run: study split dataset={dataset}", "the split is missing"), data)


def require_applicable(config: DictConfig) -> None:
    """Raise unless the configured protocol applies to the configured system."""
    name, protocol, known = config.system.name, config.protocol.name, config.system.protocols
    if protocol not in known:
        fix = f"its protocols are: {', '.join(known)} ({system_file(name).relative_to(paths.root())})"
        raise StudyError(f"{name} is not applicable under {protocol!r}", fix=fix)


def require_places(config: DictConfig, data: Dataset, split: Split) -> None:
    """Raise unless there are as many servers to rank as the run is to keep, and as T2MRec's pool is to hold (K2); here
    and not in a seed, since every worker would repeat it."""
    ranked = data.n_servers if split.candidates is None else split.candidates.shape[1]
    pool, file = OmegaConf.select(config, POOL), system_file(config.system.name)
    for key, places, most, place, what in (
        ("run_depth", config.run_depth, ranked, paths.conf() / "config.yaml", "places of the run to keep"),
        (POOL, pool or 0, data.n_servers, file, "servers in T2MRec's pool K2"),
    ):
        if places > most:
            under = f"{most} servers of {config.dataset.name} are ranked under {config.protocol.name}"
            raise StudyError(f"{places} {what}, and only {under}", file=place, column=key, fix=f"{key}={most} or less")
