"""npm and pip by script."""

import subprocess
from pathlib import Path

import pytest

from study.advisor.catalog import checks

DAY = "2026-01-02"


class Answers(dict):
    """By package what a program says: output and error stream, or (bytes) the wheel that pip brings; of another it
    cannot be started. `asked`: the commands."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def run(self, words, **how):
        assert "shell" not in how
        self.asked.append(" ".join(words))
        answer = self.get(words[2] if words[0] == "npm" else words[-1])
        if answer is None:
            raise FileNotFoundError(words[0])
        if isinstance(answer, tuple):
            return subprocess.CompletedProcess(words, int(bool(answer[1])), *answer)
        if "--dest" not in words:
            return subprocess.CompletedProcess(words, 1, "", "ERROR")
        if answer == b"slow":
            raise subprocess.TimeoutExpired(words, 1)
        Path(words[words.index("--dest") + 1], "n-1.5-py3-none-any.whl").write_bytes(answer)
        return subprocess.CompletedProcess(words, 0, "", "")


@pytest.fixture
def answers(monkeypatch):
    made = Answers()
    monkeypatch.setattr(checks.subprocess, "run", made.run)
    monkeypatch.setattr(checks, "today", lambda: DAY)
    return made
