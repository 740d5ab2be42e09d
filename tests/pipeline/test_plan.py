"""`study run --all`: what is missing or stale is made, and what is current stays; test_dvc.py has a row that fails."""

from pathlib import Path

import pytest
import yaml

from study.config.compose import load
from study.pipeline import plan
from study.pipeline.plan import run_all
from study.runner.outputs import Outputs


@pytest.fixture
def made(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is run or tuned, in order, in a study of four systems under one protocol."""
    for path in (root / "conf" / "system").glob("[!_]*.yaml"):
        if path.stem.startswith("t2mrec_"):
            path.unlink()
    dataset = root / "conf" / "dataset" / "synthetic.yaml"
    changed = yaml.safe_load(dataset.read_text()) | {"protocols": ["cold"], "leave_out": ["t2mrec"]}
    dataset.write_text(yaml.safe_dump(changed))
    settings = root / "conf" / "config.yaml"
    settings.write_text(settings.read_text().replace("trials: 12", "trials: 1 "))
    names: list[str] = []
    for stage in ("run", "tune"):
        work = getattr(plan, stage)

        def noted(config, *, replace, stage=stage, work=work):
            names.append(f"{stage} {config.system.name}")
            return work(config, replace=replace)

        monkeypatch.setattr(plan, stage, noted)
    return names


def test_what_is_current_stays(root: Path, made: list[str]) -> None:
    config = load(["dataset=synthetic", "profile=smoke"])
    assert run_all(config) == []
    assert made == ["tune task_knn", "run task_knn"]  # the others were run by the fixture
    made.clear()
    assert run_all(config) == []
    assert made == []
    Outputs.of("synthetic", "cold", "random").top10.unlink()
    system = root / "conf" / "system" / "tfidf.yaml"
    system.write_text(system.read_text().replace("max_features: 50000", "max_features: 40000"))
    assert run_all(config) == []
    assert made == ["run random", "run tfidf"]
