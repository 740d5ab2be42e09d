"""How long a request takes: quantiles, warm-up, two clocks, and saved models asked as people ask them."""

import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from study.analysis.usefulness import pareto
from study.errors import StudyError


def test_latency_quantiles_warm_up_and_waiting_which_is_elapsed_but_not_processor_time():
    seconds = np.array([[0.001, 0.002, 0.009], [0.001, 0.001, 0.003]]).T
    assert pareto.quantiles(seconds) == pytest.approx({"milliseconds": 2, "p5": 1.1, "p95": 8.3, "cpu": 1})
    calls = []
    elapsed, processor = pareto.timed(lambda request: calls.append(request) or time.sleep(0.02), [4, 5, 6], 2).T
    assert calls == [4, 5, 4, 5, 6]
    assert (elapsed >= 0.02).all()
    assert np.median(processor) < 0.015


def test_a_saved_model_is_asked_as_people_ask_it(monkeypatch):
    asked = []

    parts = {"language": "Go", "category": "a", "theme": "b", "subcategory": "c"}
    data = SimpleNamespace(name="toy", tasks=pd.DataFrame([parts]), task_texts=lambda names: [" / ".join(names)])

    def load_saved_model(dataset, system):
        asked.append((dataset, system))
        return SimpleNamespace(recommend=lambda text, **rest: asked.append((text, rest)))

    monkeypatch.setattr(pareto.saved, "load_saved_model", load_saved_model)
    pareto.answering_saved("field_dense", data)(0)
    assert asked == [("toy", "field_dense"), ("name / description", parts | {"k": 10})]


def test_an_unknown_reading_is_refused():
    with pytest.raises(StudyError, match="bm25 reads lips"):
        pareto.answering(None, "bm25", ["lips"], None, None, None)
