"""Stages `fetch`, `prepare` and `split`: from published (or generated) files to checked tables and protocols."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from omegaconf import DictConfig

from study.base import paths
from study.base.errors import StudyError
from study.base.files import write_csv
from study.config.compose import load, plain
from study.data import dataset as datasets
from study.data import describe, sources, splits, synthetic
from study.data import prepare as preparing
from study.data.dataset import Dataset

TUNED_ON = ("cold", "warm")  # protocols on whose validation parts systems are tuned
SETTINGS = ("seed", "similarity", "negatives")  # of a protocol, for its split


def fetch(config: DictConfig) -> Path:
    """Fetch the pinned files of the configured data set, or generate them."""
    name = config.dataset.name
    if config.dataset.generator is not None:
        return synthetic.generate(paths.raw(name), **plain(config.dataset.generator))
    return sources.fetch(name, plain(config.dataset))


def prepare(config: DictConfig) -> Path:
    """Check and clean the raw files, and describe the result (cleaning.csv, table2.csv, overview.csv)."""
    name, labels = config.dataset.name, config.dataset.labels
    if not isinstance(labels, str):
        file, fix = paths.conf() / "dataset" / f"{name}.yaml", "name its label file; study tools needs no prepared data"
        raise StudyError("the data set has no label file", file=file, column="labels", fix=fix)
    preparing.prepare(name, labels=labels)
    describe.write_description(name)
    return paths.prepared(name)


def make_split(data: Dataset, protocol: str) -> splits.Split:
    """The split of a protocol with the settings of ``conf/protocol``."""
    settings = load([f"protocol={protocol}"]).protocol
    return splits.make(data, protocol, **{key: settings[key] for key in SETTINGS if key in settings})


def split(config: DictConfig) -> Path:
    """Split for every protocol of the data set, and count what each part holds (splits.csv)."""
    name = config.dataset.name
    data = datasets.load(name)
    split_of = {protocol: make_split(data, protocol) for protocol in config.dataset.protocols}
    for protocol, one in split_of.items():
        splits.save(one, data, paths.splits(name) / f"{protocol}.parquet")
    tuning = {protocol: split_of[protocol] for protocol in TUNED_ON if protocol in split_of}
    counts = pd.concat(splits.summary(data, one, tuning) for one in split_of.values())
    write_csv(paths.tables(name) / "splits.csv", counts)
    return paths.splits(name)
