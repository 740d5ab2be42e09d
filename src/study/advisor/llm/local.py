"""Running a local language model: a child process with an OpenAI-compatible server on 127.0.0.1."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, Queue
from typing import IO

from study.advisor.llm.weights import OWN, LocalModels, how_to_fetch, identity, model_file, model_path
from study.base.errors import StudyError, UnavailableError, printable

ENGINE = "xllamacpp"
SCRIPT = Path(__file__).with_name("engine.py")
INSTALL = "make setup LLM=1"  # the same as: pip install -e '.[llm]'
# Idle threads sleep, so that they leave the cores to other programs.
THREADS = {"OMP_WAIT_POLICY": "passive"}
PATIENCE = 5.0  # seconds for the engine to end by itself
_starting = threading.Lock()


@dataclass(frozen=True)
class Served:
    """A model that answers."""

    url: str  # for `study.advisor.llm.client.Client`, such as ``http://127.0.0.1:40559/v1``
    alias: str  # by which replies call the model: name and hash of its file
    child: subprocess.Popen[bytes] = field(repr=False)
    log: IO[bytes] = field(repr=False)

    def stopped(self) -> str | None:
        """Why the engine has ended; None while it runs."""
        code = self.child.poll()
        return None if code is None else f"the language model's process ended (code {code}){_last_line(self.log)}"


@contextmanager
def local_model(name: str, *, port: int = 0) -> Iterator[Served]:
    """Serve a model of ``conf/llm/models.yaml`` within the block on `port` of 127.0.0.1; 0 takes a free one. Raises
    StudyError: no engine, no model file, or the engine does not start."""
    chosen = LocalModels.read()
    model = chosen[name]
    if find_spec(ENGINE) is None:
        # Both lines at once, where both are needed.
        lines = [INSTALL] if os.environ.get(OWN) or model_path(name).is_file() else [INSTALL, how_to_fetch(name)]
        raise UnavailableError(f"the engine {ENGINE} is not installed", fix=f"run: {' && '.join(lines)}")
    (path, _), alias = model_file(name), identity(name)
    options = {"path": str(path), "alias": alias, "context": model.context, "threads": model.threads, "port": port}
    command, pipe = [sys.executable, "-P", str(SCRIPT), json.dumps(options)], subprocess.PIPE
    with tempfile.TemporaryFile() as log:
        # A session of its own, so that Ctrl-C reaches the study alone, which then ends the engine.
        child = subprocess.Popen(  # noqa: S603
            command, stdin=pipe, stdout=pipe, stderr=log, env=os.environ | THREADS, start_new_session=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield Served(f"{_address(child, log, chosen.start)}/v1", alias, child, log)
        finally:
            child.stdin.close()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            child.stdout.close()


@cache
def _shared(name: str) -> Served:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(local_model(name))


def shared_model(name: str) -> Served:
    """A model that is started at the first call and serves until this process ends."""
    with _starting:
        return _shared(name)


def _address(child: subprocess.Popen[bytes], log: IO[bytes], seconds: float) -> str:
    """What the child prints once it serves. Read in a thread, since some systems wait for no pipe."""
    printed = Queue[bytes]()

    def read() -> None:
        assert child.stdout is not None
        printed.put(next((line for line in child.stdout if line.startswith(b"http")), b""))

    threading.Thread(target=read, daemon=True).start()
    try:
        line = printed.get(timeout=seconds)
    except Empty:
        child.kill()
        fix = "wait until the machine is less busy, or raise `start` in conf/llm/models.yaml"
        raise StudyError(f"the language model did not load within {seconds:.0f} seconds", fix=fix) from None
    if not line:
        child.wait()
        fix = "check the file, the memory and, where one is given, the port"
        raise StudyError(f"the language model did not start{_last_line(log)}", fix=fix)
    return line.decode().strip()


def _last_line(log: IO[bytes]) -> str:
    """What the engine said last of its errors, in one line."""
    log.seek(0)
    lines = [line for line in log.read()[-20_000:].decode(errors="replace").splitlines() if " E " in line]
    return f": {printable(lines[-1].partition(' E ')[2]).strip()[:300]}" if lines else ""
