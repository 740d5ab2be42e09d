"""A local model's process: it starts, answers, and ends with its parent; with a stand-in for the engine, and really."""

import json
import math
import os
import select
import signal
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from study.advisor.llm import local, weights
from study.advisor.llm.client import Client, EndpointError
from study.base.errors import StudyError
from study.base.files import sha256
from tests.tiny_study import REPOSITORY

STUB = str(Path(__file__).with_name("stub_engine"))
QUESTION = [{"role": "user", "content": "hello"}]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Writes a model file of a behaviour, in force with the engine's stand-in."""
    monkeypatch.syspath_prepend(STUB)
    search = [STUB, str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, search)))
    local._shared.cache_clear()

    def write(behaviour):
        path = tmp_path / "own.gguf"
        path.write_text(behaviour)
        monkeypatch.setenv("T2M_GGUF", str(path))
        return path

    yield write
    local._shared.cache_clear()


@pytest.mark.parametrize("system", ["this", "without pipes"])
def test_it_serves_within_the_block_alone(model, monkeypatch, system):
    path = model("good")
    if system != "this":  # as on Windows, where `select` knows sockets alone
        monkeypatch.setattr(select, "select", Mock(side_effect=OSError("not a socket")))
    with local.local_model("qwen") as served:
        assert served.url.startswith("http://127.0.0.1:")
        assert served.alias == f"own@sha256:{sha256(path)}"
        assert served.stopped() is None
    assert served.child.poll() == 0  # by the end of its input, not by a signal


def test_a_reply_belongs_to_the_file_and_is_replayed_without_an_engine(model, tmp_path, monkeypatch):
    name = f"own@sha256:{sha256(model('good'))}"
    client = Client("local:qwen", "record", tmp_path / "cassette.jsonl")
    assert client.chat("any", QUESTION) == "hello"
    assert client.usage.models == {name}
    assert client.chat("other", QUESTION) == "hello"
    assert (client.usage.requests, client.usage.replayed) == (1, 1)
    monkeypatch.setattr(local, "ENGINE", "no_such_engine")
    replayed = Client("local:qwen", "replay", tmp_path / "cassette.jsonl")
    assert replayed.chat("any", QUESTION) == "hello"
    assert replayed.usage.models == {name}
    model("good and other")
    with pytest.raises(EndpointError, match="no recorded reply"):
        Client("local:qwen", "replay", tmp_path / "cassette.jsonl").chat("any", QUESTION)


def test_clients_share_one_engine_past_a_proxy_and_name_one_that_died(model, monkeypatch):
    model("good")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    first, second = (Client("local:qwen", "off", sleep=lambda _: pytest.fail("asked again")) for _ in range(2))
    assert first.chat("any", QUESTION) == second.chat("any", QUESTION) == "hello"
    assert first._engine is second._engine
    first._engine.child.kill()
    first._engine.child.wait()
    with pytest.raises(EndpointError, match=r"process ended \(code -9\)"):
        second.chat("any", QUESTION)


@pytest.mark.parametrize(
    ("behaviour", "said"), [("broken", "did not start: read: the file is cut"), ("slow", "within 1 seconds")]
)
def test_an_engine_that_does_not_start_is_explained_and_ended(model, monkeypatch, behaviour, said):
    model(behaviour)
    children, start = [], subprocess.Popen

    def noted(*words, **options):
        children.append(start(*words, **options))
        return children[-1]

    monkeypatch.setattr(subprocess, "Popen", noted)
    if behaviour == "slow":
        chosen = weights.LocalModels.read()
        monkeypatch.setattr(weights.LocalModels, "read", lambda: weights.LocalModels("qwen", 1.0, chosen.models))
    with pytest.raises(StudyError, match=said), local.local_model("qwen"):
        pass
    assert [child.poll() is None for child in children] == [False]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_and_nothing_outlives_it(model, stop):
    model("good")
    command = [sys.executable, "-m", "study", "llm", "serve"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ignoring = {"preexec_fn": partial(signal.signal, signal.SIGINT, signal.SIG_IGN)}  # as a shell's background jobs do
    with subprocess.Popen(command, **pipes, **ignoring) as process:
        try:
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            (engine,) = psutil.Process(process.pid).children()
            process.send_signal(stop)
            assert process.wait(60) == (-9 if stop == signal.SIGKILL else 0)
        finally:
            process.kill()
    psutil.wait_procs([engine], timeout=20)
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE  # nobody has waited for it


def test_without_engine_or_file_it_says_what_to_run(model, monkeypatch, tmp_path):
    monkeypatch.setattr(local, "ENGINE", "no_such_engine")
    monkeypatch.setattr("study.base.paths.cache", lambda: tmp_path)
    both = "run: make setup LLM=1 && study llm fetch --model qwen$"
    with pytest.raises(StudyError, match=both), local.local_model("qwen"):
        pass
    with pytest.raises(StudyError, match="study llm fetch --model qwen"):
        weights.model_file("qwen")
    monkeypatch.setenv("T2M_GGUF", str(tmp_path / "none.gguf"))
    with pytest.raises(StudyError, match="correct T2M_GGUF"):
        weights.model_file("qwen")
    monkeypatch.delenv("T2M_GGUF")
    (tmp_path / "llm").mkdir()
    weights.model_path("qwen").write_text("damaged")
    with pytest.raises(StudyError, match="is not that of Qwen"):
        weights.model_file("qwen")


@pytest.mark.llm
def test_the_real_engine_keeps_to_a_schema_and_gives_the_logits_of_digits():
    if find_spec("xllamacpp") is None:
        pytest.skip("the engine is not installed (make setup LLM=1)")
    if not weights.model_path("smollm").is_file():
        pytest.skip("SmolLM2 was not fetched (study llm fetch --model smollm)")
    schema = {"type": "object", "properties": {"grade": {"enum": [0, 1, 2]}}, "required": ["grade"]}
    form = {"type": "json_schema", "json_schema": {"name": "grade", "schema": schema | {"additionalProperties": False}}}
    with local.local_model("smollm") as served:
        client = Client(served.url, "off", timeout=120)
        long = [{"role": "user", "content": "A hammer drives nails. " * 20 + "Grade it as JSON."}]
        answer = json.loads(client.chat("any", long, max_tokens=30, temperature=0, response_format=form))
        assert answer["grade"] in (0, 1, 2)
        long[0]["content"] = long[0]["content"].removesuffix("as JSON.") + "by one digit:"
        body = {"model": "any", "messages": long, "max_tokens": 1, "logprobs": True, "top_logprobs": 1000}
        reply = client.post("chat/completions", body)
        (first,) = reply["choices"][0]["logprobs"]["content"]
        logprobs = {entry["token"]: entry["logprob"] for entry in first["top_logprobs"]}
        assert {"0", "1", "2"} <= set(logprobs)
        assert 0.5 < sum(map(math.exp, logprobs.values())) <= 1.001
        assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 100  # the common prefix was not read again
        assert client.usage.models == {served.alias}
