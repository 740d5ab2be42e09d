"""A study's folder that tests may fill: its settings are copies, its code is this repository's."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
SIZE = ["dataset=synthetic", "dataset.generator.n_servers=60", "dataset.generator.n_tasks=80"]
TINY = [*SIZE, "profile=smoke"]


def lay_out(root: Path) -> None:
    """Copy settings, notebooks and reference scores, whose versions rows are keyed by; link the code."""
    for folder in ("conf", "notebooks", "tests/reference"):
        shutil.copytree(REPOSITORY / folder, root / folder)
    for folder in ("src", "baselines"):
        (root / folder).symlink_to(REPOSITORY / folder)


def keep_systems(root: Path, *names: str) -> None:
    """Leave a study these systems alone; a file stays where it describes one of them, with these of its variants."""
    for path in (root / "conf" / "system").glob("*/[!_]*.yaml"):
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        variants = settings.pop("variants", {})
        kept = {short: own for short, own in variants.items() if f"{path.stem}_{short}" in names}
        if path.stem not in names and not kept:
            path.unlink()
        elif kept != variants:
            path.write_text(yaml.safe_dump(settings | {"variants": kept}, sort_keys=False), encoding="utf-8")


def make_data(overrides: list[str] = SIZE) -> None:
    """Generate, prepare and split a data set, by default the tiny one, in the root that is in force."""
    from study.config.compose import load
    from study.data.stages import fetch, prepare, split

    for stage in (fetch, prepare, split):
        stage(load(overrides))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path, and what it holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def rooted(root: Path) -> Iterator[None]:
    """T2M_ROOT at the folder, and the environment as it was afterwards."""
    before = dict(os.environ)
    os.environ["T2M_ROOT"] = str(root)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def true_relevance(tasks: pd.DataFrame, servers: pd.DataFrame) -> np.ndarray:
    """Planted grades of rows of truth_tasks.csv and truth_servers.csv, shape (len(tasks), len(servers)), int8: 2 for
    the same facet, 1 for the same topic or second topic, else 0."""
    topic, facet = tasks["topic"].to_numpy()[:, None], tasks["facet"].to_numpy()[:, None]
    on_topic = (servers["topic"].to_numpy() == topic) | (servers["second_topic"].to_numpy() == topic)
    return on_topic.astype(np.int8) + (servers["facet"].to_numpy() == facet)
