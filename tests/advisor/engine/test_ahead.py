"""Reading the larger encoder while a command loads the rest."""

from threading import Event

import pytest

from study.advisor.encoders import mpnet
from study.advisor.saved import ahead
from study.base.errors import StudyError


@pytest.mark.parametrize(("saved", "fails"), [(True, False), (True, True), (False, False)])
def test_the_encoder_is_read_once_and_waited_for_where_a_saved_system_needs_it(monkeypatch, saved, fails):
    go, done = Event(), []

    def encode(texts, *, store):
        assert go.wait(10)
        done.append(texts)
        if fails:
            raise StudyError("not there", fix="fetch it")

    monkeypatch.setattr(mpnet, "encode", encode)
    monkeypatch.setattr(
        ahead, "exists", lambda dataset, system: saved and (dataset, system) == ("toy", ahead.USEFUL[0])
    )
    monkeypatch.setattr(ahead, "limit_threads", done.append)
    ahead.read_ahead("toy", *ahead.USEFUL)
    assert done == [1] * saved  # one thread; nothing waits for the encoder
    done.clear()
    go.set()
    ahead.wait()
    ahead.wait()
    assert len(done) == saved
