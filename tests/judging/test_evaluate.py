"""The whole chain on planted truth: what was planted comes back, and what is unknown is said."""

import lzma
import shutil

import numpy as np
import pandas as pd
import pytest

from study import paths
from study.analysis.usefulness.choosing import against
from study.errors import StudyError
from study.judging import evaluate, store, verify
from study.judging.collection import Collection

DATASET = "synthetic"


@pytest.fixture
def collection(shared_root):
    return Collection.load(DATASET)


@pytest.fixture
def planted(shared_root, truth_of):
    """The collection with planted grades instead of judged ones."""
    judged, truth = store.final(DATASET), truth_of()
    grade = pd.array([truth[int(t), int(s)] for t, s in judged[store.PAIR].to_numpy()], dtype="Int64")
    return Collection.of(store.read_table(DATASET, "topics"), judged.assign(final=grade, grade_1=grade, grade_2=grade))


def ideal(collection):
    """The best ten judged servers of every topic, as a run."""
    order = np.argsort(-collection.grades, axis=1, kind="stable")[:, :10]
    rows = [
        (task, 1, rank + 1, collection.servers[column])
        for task, line in zip(collection.topics["task_id"], order, strict=True)
        for rank, column in enumerate(line)
    ]
    return pd.DataFrame(rows, columns=["task_id", "seed", "rank", "server_id"])


def test_planted_relevance_is_recovered(collection, planted):
    judged = store.final(DATASET).set_index(store.PAIR)["final"].astype(float)
    topic = pd.Index(planted.topics["task_id"]).get_indexer(judged.index.get_level_values("task_id"))
    true = planted.grades[topic, np.searchsorted(planted.servers, judged.index.get_level_values("server_id"))]
    # The third reader knows the truth, so that errors remain only where both first readers erred alike or 1 met 2.
    assert (judged.to_numpy() == true).mean() > 0.95
    best = evaluate.per_task(planted, ideal(planted))
    assert best["ndcg@10"].dropna().to_numpy() == pytest.approx(1)
    # Ten places cannot hold more useful servers than ten.
    useful = (planted.grades >= 1).sum(axis=1)
    assert best["bpref"].to_numpy() == pytest.approx(np.minimum(10, useful) / useful)
    for name, run in store.read_runs(DATASET).items():
        noisy, exact = (evaluate.per_task(of, run)["ndcg@10"].mean() for of in (collection, planted))
        assert noisy == pytest.approx(exact, abs=0.05), name


def test_systems_are_ordered_as_by_the_truth(collection, planted):
    runs = store.read_runs(DATASET)
    means = [
        {name: evaluate.per_task(of, run)["ndcg@10"].mean() for name, run in runs.items()}
        for of in (collection, planted)
    ]
    orders = [sorted(found, key=found.get) for found in means]
    assert orders[0] == orders[1]
    assert orders[0][0] == "random"


def test_control_has_the_mean_grade_of_the_catalogue(shared_root, truth_of):
    runs = store.read_runs(DATASET)
    provenance, judged, topics = (store.read_table(DATASET, name) for name in ("provenance", "judgements", "topics"))
    found = evaluate.label_precision(runs["labels"], provenance, judged, topics).set_index(["scope", "name"])
    wanted = set(topics["task_id"])
    base = np.mean([grade for (task, _), grade in truth_of().items() if task in wanted])
    control = found.loc[("control", "all")]
    assert control["mean_grade_low"] - 0.02 < base < control["mean_grade_high"] + 0.02
    assert found.loc[("all", "all"), "mean_grade_low"] > control["mean_grade_high"]


def test_label_precision_is_that_of_the_planted_labels(shared_root):
    truth = pd.read_csv(paths.raw(DATASET) / "truth_labels.csv")
    topics = store.read_table(DATASET, "topics")
    truth = truth[truth["task_id"].isin(topics["task_id"]) & truth["in_list"]]
    judged = store.final(DATASET)
    found = evaluate.label_precision(
        store.read_runs(DATASET)["labels"], store.read_table(DATASET, "provenance"), judged, topics
    )
    overall = found.set_index(["scope", "name"]).loc[("all", "all")]
    useful = (truth["grade"] >= 1).groupby(truth["task_id"]).mean().mean()
    assert overall["useful"] == pytest.approx(useful, abs=0.03)
    assert overall["useful_low"] < overall["useful"] < overall["useful_high"]
    assert not (found["scope"] == "class").any()
    positions = found[found["scope"] == "position"]
    assert sorted(map(int, positions["name"])) == list(range(1, 11))
    assert positions["pairs"].sum() == overall["pairs"]


def test_label_precision_by_rule_finds_a_useless_rule(shared_root):
    run, judged = store.read_runs(DATASET)["labels"], store.final(DATASET)
    classes = run.merge(judged, on=store.PAIR).assign(class_=lambda rows: np.where(rows["final"] > 0, "word", "filler"))
    classes = classes.rename(columns={"class_": "class"})
    inputs = run, store.read_table(DATASET, "provenance"), judged, store.read_table(DATASET, "topics")
    found = evaluate.label_precision(*inputs, pd.concat([classes, classes])).set_index(["scope", "name"])
    assert found.loc[("class", "filler"), "useful"] == 0
    assert found.loc[("class", "word"), "useful"] == 1
    assert found.loc["class", "pairs"].sum() == found.loc[("all", "all"), "pairs"]


def test_variants_are_no_further_evidence(collection):
    runs = store.read_runs(DATASET)
    some = sorted(set(runs) - {store.LABELS})[0]
    copies = {f"{some}_{letter}": runs[some] for letter in "abc"}
    kept = evaluate.two_views(collection, runs | copies, "test", [f"{some}_*"])
    assert set(kept["system"]) == set(evaluate.two_views(collection, runs, "test")["system"])
    assert set(evaluate.two_views(collection, runs | copies, "test")["system"]) >= set(copies)


def test_a_better_system_scores_better_and_noise_is_stated(collection):
    runs = store.read_runs(DATASET) | {"ideal": ideal(collection)}
    tables = {name: evaluate.per_task(collection, run) for name, run in runs.items()}
    table = evaluate.scores(collection, tables, runs).set_index(["system", "part", "metric"])
    for part in ("valid", "test"):
        rows = table.xs((part, "ndcg@10"), level=("part", "metric"))
        assert rows["mean"].idxmax() == "ideal"
        assert (rows["low"] <= rows["mean"]).all()
        assert (rows["mean"] <= rows["high"]).all()
        assert (rows["noise_low"] < rows["noise_high"]).all()
        assert rows["comparable"].all()
        assert (rows["unjudged"] == 0).all()
    assert table.loc[("labels", "test", "precision@5"), "n"] == 32
    assert np.isnan(table.loc[("labels", "test", "bpref"), "noise_low"])


def test_equal_passes_leave_no_noise(planted):
    run = store.read_runs(DATASET)["tfidf"]
    for low, high in evaluate.noise(planted, run, "test", seed=0, resamples=5).values():
        assert low == high


def test_unjudged_answers_are_counted_and_refused(collection):
    runs = store.read_runs(DATASET)
    strange = runs["tfidf"].copy()
    strange.loc[strange["rank"] == 1, "server_id"] = 10**6
    tables = {"tfidf": evaluate.per_task(collection, runs["tfidf"]), "strange": evaluate.per_task(collection, strange)}
    assert tables["strange"]["unjudged@10"].mean() == pytest.approx(0.1)
    assert tables["strange"]["unjudged@5"].mean() == pytest.approx(0.2)
    table = evaluate.scores(collection, tables, {"tfidf": runs["tfidf"], "strange": strange})
    assert not table.loc[table["system"] == "strange", "comparable"].any()
    views = evaluate.two_views(collection, {**runs, "strange": strange}, "test")
    assert "strange" not in set(views["system"])


def test_rank_correlation_by_hand():
    def views(judged):
        rows = [(f"s{i}", task, 0.1 * i, value) for i, value in enumerate(judged) for task in range(4)]
        return pd.DataFrame(rows, columns=["system", "task_id", "by_labels", "by_judgements"])

    assert evaluate.rank_correlation(views([0.1, 0.2, 0.3]))["tau"] == pytest.approx(1)
    assert evaluate.rank_correlation(views([0.3, 0.2, 0.1]))["tau"] == pytest.approx(-1)
    # One of the three pairs of systems is ordered the other way round.
    assert evaluate.rank_correlation(views([0.2, 0.1, 0.3]))["tau"] == pytest.approx(1 / 3)
    assert np.isnan(evaluate.rank_correlation(views([0.2]))["tau"])


def test_labels_score_one_by_labels(collection):
    runs = store.read_runs(DATASET)
    assert evaluate.by_labels(collection, runs["labels"], runs["labels"])["by_labels"].to_numpy() == pytest.approx(1)


@pytest.fixture
def few_draws(monkeypatch):
    """Intervals from a few draws: their width is not what these tests ask."""
    monkeypatch.setattr(evaluate, "NOISE_RESAMPLES", 3)
    monkeypatch.setattr(evaluate, "RESAMPLES", 20)


@pytest.mark.usefixtures("few_draws")
def test_every_number_is_computed_from_committed_files_alone(root):
    shutil.rmtree(root / "data")
    shutil.rmtree(root / ".cache")
    found = verify.all_tables(DATASET)
    verify.write_all(DATASET)
    assert set(found["tables/scores.csv"]["system"]) == {"labels", "bm25", "random", "tfidf"}
    assert set(found["tables/rank_correlation.csv"]["part"]) == {"valid", "test"}
    per_task = pd.read_csv(store.folder(DATASET) / "per_task.csv.xz").query("system == 'tfidf'")
    table = pd.read_csv(store.folder(DATASET) / "tables" / "scores.csv")
    mean = table.query("system == 'tfidf' and part == 'test' and metric == 'ndcg@10'")["mean"].iloc[0]
    test = per_task.merge(store.read_table(DATASET, "topics").query("part == 'test'"), on="task_id")
    assert test["ndcg@10"].mean() == pytest.approx(mean, rel=1e-4)


@pytest.mark.usefixtures("few_draws")
def test_verify_finds_a_changed_grade_and_a_lost_table(root):
    verify.write_all(DATASET)
    assert set(verify.verify(DATASET)["verdict"]) == {"OK"}
    path = store.file(DATASET, "judgements")
    table = pd.read_csv(path, dtype=str)
    listed = store.read_runs(DATASET)["labels"].iloc[0]
    row = (table["task_id"] == str(listed["task_id"])) & (table["server_id"] == str(listed["server_id"]))
    table.loc[row, "final"] = str((int(table.loc[row, "final"].iloc[0]) + 1) % 3)
    table.to_csv(path, index=False)
    (store.folder(DATASET) / "tables" / "confusion.csv").unlink()
    found = verify.verify(DATASET).set_index("file")["verdict"]
    assert found["tables/scores.csv"] == found["tables/label_precision.csv"] == "FAIL"
    assert found["tables/confusion.csv"] == "MISSING"
    assert found["judgements.csv"] == found["qrels/all.txt"] == found["croissant.json"] == "FAIL"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("qrels/test.txt", lambda text: text.replace(" 0\n", " 2\n", 1)),
        ("pool.csv.xz", lambda text: "\n".join(text.splitlines()[:-3]) + "\n"),
        ("croissant.json", lambda text: text.replace('"sha256": "', '"sha256": "0')),
        ("judgements.csv", lambda text: text.replace(",0,0,,0,", ",0,0,,1,", 1)),
    ],
)
def test_what_is_released_is_checked_too(root, file, change):
    verify.write_forms(DATASET)
    assert set(verify.check_released(DATASET).values()) == {"OK"}
    path = store.folder(DATASET) / file
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt") as there:
        before = there.read()
    changed = change(before)
    assert changed != before
    with opened(path, "wt") as there:
        there.write(changed)
    assert verify.check_released(DATASET)[file] == "FAIL"


def test_noise_is_that_of_a_judge_who_grades_once_more(collection):
    # One pair in doubt, listed first: 0 or 2, settled as 1 by a third pass.
    topics = collection.topics[:1]
    task = int(topics["task_id"].iloc[0])
    rows = pd.DataFrame({"task_id": task, "server_id": [1, 2], "grade_1": [0, 1], "grade_2": [2, 1], "final": [1, 1]})
    small = Collection.of(topics, rows)
    run = pd.DataFrame({"task_id": task, "seed": 0, "rank": [1, 2], "server_id": [1, 2]})
    part = str(topics["part"].iloc[0])
    found = evaluate.noise(small, run, part, seed=0, resamples=400)
    assert found["precision@5"] == (0.2, 0.4)  # useless in a quarter of the draws
    assert found["core_precision@5"] == (0.0, 0.2)  # core in another quarter
    two = pd.concat([run, run.assign(seed=1, rank=[2, 1])])
    assert evaluate.noise(small, two, part, seed=0, resamples=400)["precision@5"] == (0.2, 0.4)


def test_near_copies_move_tau_and_both_are_stated(collection, root, few_draws):
    found = evaluate.label_tables(DATASET)["tables/rank_correlation.csv"].set_index("part")
    assert (found["all_systems"] >= found["systems"]).all()
    assert found["all_tau"].between(-1, 1).all()


def test_a_system_is_compared_with_every_other_judged_one(shared_root):
    table = against(DATASET, "tfidf", "test")
    assert set(table["system"]) == set(store.read_runs(DATASET)) - {"tfidf"}
    assert (table["reference"] == "tfidf").all()
    assert table.set_index("system").loc["random", "difference"] < 0
    with pytest.raises(StudyError, match="not judged"):
        against(DATASET, "nothing", "test")
