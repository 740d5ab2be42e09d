"""The published catalogues by name: fetched at a pinned commit, checked, loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from study import paths
from study.data import sources
from study.errors import StudyError
from study.files import write_csv
from study.tools.catalogues import apibank, livemcpbench, mcpflow, mcptoolbench, mcptools
from study.tools.catalogues.files import Loaded

LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "livemcpbench": livemcpbench.load,
    "mcptools": mcptools.load,
    "mcpflow": mcpflow.load,
    "apibank": apibank.load,
    "mcptoolbench": mcptoolbench.load,
}


def fetch(name: str) -> Path:
    """Bring the files of a catalogue into data/raw; files that are there and good are kept."""
    if name not in LOADERS:
        raise StudyError(f"unknown catalogue {name!r}", fix=f"one of: {', '.join(LOADERS)}")
    config = yaml.safe_load((paths.conf() / "dataset" / f"{name}.yaml").read_text(encoding="utf-8"))
    return sources.fetch(name, config)


def load(name: str) -> Loaded:
    """A published catalogue, fetched where needed; its cleaning table goes to results/NAME/tables/cleaning.csv."""
    folder = fetch(name)
    loaded = LOADERS[name](folder)
    write_csv(paths.tables(name) / "cleaning.csv", loaded.cleaning)
    return loaded
