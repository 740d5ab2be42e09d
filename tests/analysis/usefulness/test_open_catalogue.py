"""The pool over the open catalogue: what is asked, what a judge sees, and what is committed."""

import shutil

import numpy as np
import pandas as pd
import pytest

from study.advisor.catalog import store as catalogue_store
from study.advisor.catalog.settings import Sources
from study.advisor.catalog.store import Batch
from study.advisor.encoders.sentence import WITHOUT_TORCH, without_torch
from study.advisor.retrieval import field_dense
from study.advisor.saved import field_dense as saved
from study.analysis.framework import load_settings
from study.analysis.usefulness import open_catalogue
from study.analysis.usefulness import rivals as products
from study.base import paths
from study.base.errors import StudyError
from study.judging import store, workflow
from tests.advisor.catalog.sources import record
from tests.analysis.toys import change
from tests.tiny_study import REPOSITORY

pytestmark = pytest.mark.usefixtures("private_cache")
REQUESTS = ["read pdf documents", "send mail"]
SETTINGS = {
    "reference": "recommend field_dense",
    "systems": ["field_dense"],
    "answering": ["field_dense"],
    "products": ["docker", "registry"],
}


def encode(texts, *, model="minilm", store=True, device="cpu"):
    """A stand-in for the encoder: words as hashed counts."""
    vectors = np.full((len(texts), 384), 1e-3, dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().split():
            vectors[row, sum(word.encode()) % 384] += 1
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sync(**changed):
    texts = {f"other{number}": f"does thing number {number}" for number in range(30)}
    texts |= {"pdf": "reads pdf documents", "mail": "sends mail"} | changed
    records = [record("toolsdk", key, f"github.com/o/{key}", description=text) for key, text in texts.items()]
    with catalogue_store.locked():
        catalogue_store.commit([Batch("toolsdk", records, [], True, {})], Sources.read())


@pytest.fixture
def pooled(conf_root, monkeypatch):
    """A root in which a small catalogue was synced and pooled for two requests."""
    for module in (field_dense, saved, products):
        monkeypatch.setattr(module, "encode", encode)
    (conf_root / "docs").mkdir()
    shutil.copy(REPOSITORY / "docs" / "judging-guidelines.md", conf_root / "docs")
    change("usefulness/open.yaml", **SETTINGS, depth=4, control=3)
    change("recommend/requests.yaml", served=REQUESTS)
    sync()
    open_catalogue.make_pool()
    return conf_root


def test_the_pool_is_what_the_methods_name_and_a_control(pooled):
    pool, runs = store.read_table("open", "pool"), store.read_runs("open")
    provenance = store.read_table("open", "provenance")
    assert list(runs) == ["docker", "field_dense", "recommend field_dense", "registry"]
    control = provenance[provenance["control"] == 1]
    assert control.groupby("task_id").size().to_dict() == {1: 3, 2: 3}
    assert store.pairs(pool) == store.pairs(control).union(*map(store.pairs, runs.values()))
    servers = pd.read_csv(store.folder("open") / "servers.csv")
    assert set(servers["server_id"]) == set(pool["server_id"])
    id_of = servers.set_index("server_id")["id"]
    first = {
        name: id_of[run[run["rank"] == 1].set_index("task_id")["server_id"]].tolist() for name, run in runs.items()
    }
    assert first["docker"] == first["registry"] == first["field_dense"] == ["o/pdf", "o/mail"]
    assert len(runs["field_dense"]) == 8
    assert len(runs["registry"]) == 2  # only what matches


def test_a_judge_sees_requests_and_servers_and_nothing_is_committed_but_ids(pooled):
    folder = workflow.write_batches("open", "1")
    text = "\n".join(path.read_text() for path in folder.glob("*.txt"))
    assert all(f'description: "{request}"' in text for request in REQUESTS)
    assert 'description: "reads pdf documents"' in text
    assert not [word for word in ("docker", "registry", "field_dense", "toolsdk") if word in text]
    for path in store.folder("open").iterdir():
        content = path.read_bytes() if path.suffix != ".xz" else pd.read_csv(path).to_csv().encode()
        assert b"reads pdf" not in content


def test_judged_pairs_belong_to_one_version_of_the_catalogue(pooled):
    judged = store.read_table("open", "pool")[store.PAIR].assign(
        **dict.fromkeys(("grade_1", "grade_2", "final"), 0), grade_3=None, round=1, guideline_version="1.0", judge="j"
    )
    judged.to_csv(store.file("open", "judgements"), index=False)
    before = store.read_table("open", "pool")
    open_catalogue.make_pool()
    pd.testing.assert_frame_equal(store.read_table("open", "pool"), before)
    sync(other3="does something else")
    with pytest.raises(StudyError, match="another version of the catalogue"):
        open_catalogue.make_pool()
    assert paths.prepared("open").exists()


def test_an_unanswered_request_counts_nothing_and_tokens_of_first_answers_are_counted(pooled, monkeypatch):
    pool, names = store.read_table("open", "pool"), pd.read_csv(store.folder("open") / "servers.csv")
    wanted = {(1, "o/pdf"): 2, (2, "o/mail"): 1}
    id_of = names.set_index("server_id")["id"]
    grades = [wanted.get((task, id_of[server]), 0) for task, server in pool[store.PAIR].itertuples(index=False)]
    judged = pool[store.PAIR].assign(**dict.fromkeys(("grade_1", "grade_2", "final"), grades))
    judged.assign(grade_3=None, round=1, guideline_version="1.0", judge="j").to_csv(
        store.file("open", "judgements"), index=False
    )
    runs = store.read_runs("open")
    # docker loses its answer to the second request.
    runs["docker"] = runs["docker"][runs["docker"]["task_id"] == 1]
    store.write_runs("open", runs)
    found = open_catalogue.score_methods(load_settings(open_catalogue.Open)).set_index("system")
    assert found.loc["field_dense", ["n", "answered", "ndcg@10", "first"]].tolist() == [2, 1.0, 1.0, 1.0]
    assert found.loc["docker", ["answered", "ndcg@10", "first", "diff"]].tolist() == [0.5, 0.5, 0.5, -0.5]
    assert found.loc["field_dense", "precision@5"] == pytest.approx(0.2)
    assert np.isnan(found.loc["recommend field_dense", "diff"])
    tokens = open_catalogue.tokens("recommend field_dense")
    assert tokens["tokens"].tolist() == [0, 0]  # these servers list no tools
    assert without_torch(WITHOUT_TORCH["minilm"]).cut("word " * 300)  # counting has not changed how the encoder reads
