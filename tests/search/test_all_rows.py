"""All rows of a data set: what is current stays, every override counts, and `--replace` reuses nothing."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from omegaconf import OmegaConf

from study.base import paths
from study.base.errors import StudyError
from study.config.compose import load
from study.runner.row_store import read_row, remove_row
from study.search import all_rows, sweep
from study.search.all_rows import due, is_current, run_all, summary
from tests.rows import change_row
from tests.tiny_study import contents, keep_systems

WORDS = ["dataset=synthetic", "profile=smoke", "tuning.trials=1"]
SYSTEMS = ("random", "popularity", "tfidf", "task_knn")


@pytest.fixture
def ran(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is run or tuned, in order, in a study of four systems under one protocol."""
    keep_systems(root, *SYSTEMS, "t2mrec")
    dataset = root / "conf" / "dataset" / "synthetic.yaml"
    changed = yaml.safe_load(dataset.read_text()) | {"protocols": ["cold"], "leave_out": ["t2mrec"]}
    dataset.write_text(yaml.safe_dump(changed))
    names: list[str] = []
    for stage, function in (("run", "run_row"), ("tune", "tune")):
        work = getattr(all_rows, function)

        def noted(config, *, stage=stage, work=work, **given):
            names.append(f"{stage} {config.system.name}")
            return work(config, **given)

        monkeypatch.setattr(all_rows, function, noted)
    return names


def test_what_is_current_stays(root: Path, ran: list[str]) -> None:
    tfidf = ["dataset=synthetic", "system=tfidf"]
    assert is_current(load([*tfidf, "profile=smoke"]))
    assert not is_current(load([*tfidf, "profile=laptop"]))
    assert not is_current(load([*tfidf, "profile=smoke", "system.seeds=[1,2]"]))
    assert run_all(WORDS) == []
    assert ran == ["tune task_knn", "run task_knn"]  # the others were run by the fixture
    ran.clear()
    assert run_all(WORDS) == []
    assert ran == []
    remove_row("synthetic", "cold", "random")
    system = root / "conf" / "system" / "simple" / "tfidf.yaml"
    system.write_text(system.read_text().replace("max_features: 50000", "max_features: 40000"))
    assert run_all(WORDS) == []
    assert ran == ["run random", "run tfidf"]


def test_a_sweep_that_chooses_the_values_of_a_system_comes_before_its_row(root: Path, ran, monkeypatch) -> None:
    for module in (all_rows, sweep):
        monkeypatch.setattr(module, "TUNED", {"small": "task_knn"})
    space = "space:\n  k: {choices: [1, 2]}\n"
    text = f"name: small\ntitle: Small\nsystem: task_knn\nparts: [valid]\n{space}"
    (root / "conf" / "sweep" / "small.yaml").write_text(text)
    words = [*WORDS, "system=task_knn"]
    assert [job.name for job in due(words, [])] == ["sweep small", "task_knn under cold"]
    assert run_all(words) == []
    assert read_row("synthetic", "cold", "task_knn").record["config"]["system"]["model"]["k"] in (1, 2)
    assert due(words, []) == []
    system = root / "conf" / "system" / "simple" / "task_knn.yaml"
    system.write_text(system.read_text().replace("max_features: 50000", "max_features: 40000"))
    assert [job.name for job in due(words, [])] == ["sweep small", "task_knn under cold"]


def test_every_override_reaches_every_row_and_search_and_named_ones_leave_out_the_others(ran, monkeypatch) -> None:
    configs: list = []
    for function in ("run_row", "tune"):
        monkeypatch.setattr(all_rows, function, lambda config, **_: configs.append(config))
    words = {"tuning.trials": 3, "tuning.seed": 7, "run_depth": 20, "logger.kind": "tensorboard"}
    words |= {"profile.name": "laptop", "profile.workers": 1, "profile.threads": 2}
    run_all([f"{key.removesuffix('.name').removesuffix('.kind')}={value}" for key, value in words.items()])
    assert {config.system.name for config in configs} == set(SYSTEMS)
    for config in configs:
        assert {key: OmegaConf.select(config, key) for key in words} == words
    configs.clear()
    run_all([*WORDS, "system=t2mrec", "protocol=warm"])  # named, so the data set does not leave it out
    assert [(config.system.name, config.protocol.name) for config in configs] == [("t2mrec", "warm")]
    assert configs[0].protocol == load(["protocol=warm"]).protocol


def test_a_variant_needs_its_system_and_its_name(root: Path, ran: list[str]) -> None:
    variant = ["system=tfidf", "system.model.max_features=9"]
    one_system = "setting of one system", "add system=NAME"
    for words, problem, fix in ((variant[1:], *one_system), (variant, ": 9", "system.name=")):
        with pytest.raises(StudyError, match=problem) as caught:
            run_all([*WORDS, *words])
        assert fix in caught.value.fix
    for runs in (["run tfidf_nine"], []):  # the second time it is current
        assert run_all([*WORDS, *variant, "system.name=tfidf_nine"]) == []
        assert ran == runs
        ran.clear()
    with pytest.raises(StudyError, match="unknown protocol 'wram'"):
        run_all([*WORDS, "protocol=wram"])


def test_another_budget_or_split_tunes_again(root: Path, ran: list[str]) -> None:
    run_all(WORDS)
    assert due(WORDS, []) == []
    for word in ("tuning.trials=2", "tuning.seed=2", "tuning.startup=2"):
        assert next(job.name for job in due([*WORDS, word], [])) == "tuning of task_knn under cold"
    path = paths.splits("synthetic") / "cold.parquet"
    pd.read_parquet(path).iloc[::-1].to_parquet(path)
    names = ["popularity", "random", "tuning of task_knn", "task_knn", "tfidf"]
    assert [job.name for job in due(WORDS, [])] == [f"{name} under cold" for name in names]


def test_a_dry_run_names_what_is_due_and_makes_nothing(root: Path, ran: list[str], call) -> None:
    remove_row("synthetic", "cold", "tfidf")
    before = contents(root)
    code, out, _ = call("run", "--all", "--dry", *WORDS)
    assert code == 0
    assert out.splitlines()[:3] == ["tuning of task_knn under cold", "task_knn under cold", "tfidf under cold"]
    assert out.splitlines()[3] == "2 rows and 1 search; 3 of them have no record"
    assert contents(root) == before
    assert call("run", "--dry", "system=tfidf")[0] == 2
    (paths.prepared("synthetic") / "servers.parquet").unlink()
    for words in (["run", "--all", "--dry"], ["tune", "--all"]):
        code, _, err = call(*words, *WORDS)
        assert (code, err.count("error:"), "servers.parquet" in err) == (2, 1, True)
    assert ran == []


def test_hours_come_from_records(root: Path, ran: list[str]) -> None:
    record = read_row("synthetic", "cold", "random").record
    record["seeds"] = [{"seed": 1, "seconds_fit": 7000, "seconds_score": 200}]
    change_row("synthetic", "cold", "random", record=record)
    jobs = due([*WORDS, "system=random"], [], every=True)
    hours = 2 * len(jobs[0].config.system.seeds)
    assert summary(jobs) == f"1 row and 0 searches, about {hours:.1f} hours by earlier records"


def test_replacing_makes_everything_again_and_a_stopped_one_goes_on(ran: list[str], monkeypatch) -> None:
    kept = [paths.cache() / name for name in ("quantisers/x", "recbole/x", "tune/synthetic/x", "sweeps/synthetic/x")]
    for folder in kept:
        folder.mkdir(parents=True, exist_ok=True)
    work = all_rows.run_row

    def stopping(config, *, replace):
        if config.system.name == "task_knn":
            raise KeyboardInterrupt
        return work(config, replace=replace)

    monkeypatch.setattr(all_rows, "run_row", stopping)
    with pytest.raises(KeyboardInterrupt):
        run_all(WORDS, replace=True)
    monkeypatch.setattr(all_rows, "run_row", work)
    assert ran == ["run popularity", "run random", "tune task_knn"]
    assert not any(folder.exists() for folder in kept)
    ran.clear()
    run_all(WORDS, replace=True)
    assert ran == ["run task_knn", "run tfidf"]
    ran.clear()
    run_all(WORDS, replace=True)  # it was whole: from the beginning
    assert len(ran) == 5
