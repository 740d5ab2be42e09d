"""Files of ``conf/`` are read strictly: whatever is wrong, the error names the file and the keys that it must have."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from study.advisor.agent import page
from study.advisor.llm import settings as endpoint
from study.analysis.audit import leakage, verdicts
from study.analysis.framework import load_settings
from study.analysis.overall import bench
from study.analysis.report import runs
from study.analysis.usefulness import stuffing
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_keys, read_settings
from study.judging import store
from study.tools import router


@dataclass(frozen=True)
class Sizes:
    width: int
    depth: int
    names: list[str]

    def __post_init__(self) -> None:
        if self.width < 1:
            raise StudyError("too narrow", column="width")


KEYS = ("width", "depth", "names")
RIGHT = {"width": 3, "depth": 2, "names": ["ä", "b"]}
WRONG = [(b"width: [3\n", "cannot be read (while parsing"), (b"", "cannot be read (NoneType instead of a mapping")]
WRONG += [(b"width: 3\n\tdepth: 2\n", "cannot be read (while scanning")]
WRONG += [(b"width: !!python/object/apply:os.getcwd []\n", "cannot be read (could not determine a constructor")]
WRONG += [("width: 3\ndepth: 2\nnames: [ä]\n".encode("latin-1"), "cannot be read ('utf-8' codec can't decode")]
WRONG += [
    (b"- width\n- depth\n- names\n", "list instead of a mapping"),
    (b"width depth names\n", "str instead of a mapping"),
]
WRONG += [(b"width: 3\nnames: []\n", "missing key 'depth'")]
WRONG += [(b"width: 3\ndepth: 2\nnames: []\ncolour: red\n", "unknown key 'colour'")]
WRONG += [(b"width: 3\ndepht: 2\nnames: []\n", "unknown key 'depht'")]
WRONG += [(b"width: 3\ndepth: 2\nnames: []\nwidth: 4\n", "cannot be read (the key 'width' is written twice, line 1")]
# Ten lines that stand for ten thousand million values, below a key that is known.
BOMB = "names:\n- &a0 [x]\n" + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
WRONG += [(f"{BOMB}width: *a9\ndepth: 2\n".encode(), "cannot be read (it holds an alias")]
READERS: dict[str, Callable[[], object]] = {
    "agent/service": page.Service.read,
    "audit/leakage": lambda: load_settings(leakage.Leakage),
    "audit/verdicts": lambda: load_settings(verdicts.Verdicts),
    "overall/bench": lambda: load_settings(bench.Bench),
    "judging/pool": store.pool_settings,
    "judging/topics": store.topic_settings,
    "statistics": runs.read_statistics,
    "llm/rerank": lambda: endpoint.endpoint_settings("rerank"),
    "usefulness/stuffing": lambda: load_settings(stuffing.Stuffing),
    "tools/router": router.router_settings,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sizes.yaml"


def test_a_right_file_is_read_and_what_its_kind_finds_wrong_is_said_with_the_file(file: Path) -> None:
    file.write_text("names: [ä, b]\nwidth: 3  # int\ndepth: 2\n", encoding="utf-8")
    assert read_keys(file, KEYS) == RIGHT
    assert read_settings(Sizes, file) == Sizes(3, 2, ["ä", "b"])
    file.write_text(yaml.safe_dump(RIGHT | {"width": 0}))
    error = refusal(lambda: read_settings(Sizes, file))
    assert (error.reason, error.file, error.column) == ("too narrow", file, "width")


@pytest.mark.parametrize(("content", "reason"), WRONG)
def test_a_wrong_file_is_refused(file: Path, content: bytes, reason: str) -> None:
    file.write_bytes(content)
    for error in (refusal(lambda: read_keys(file, KEYS)), refusal(lambda: read_settings(Sizes, file))):
        assert reason in error.reason
        assert error.file == file
        assert error.fix == ("correct the file" if "cannot" in error.reason else "its keys are: width, depth, names")


def test_a_missing_file_is_named(file: Path) -> None:
    error = refusal(lambda: read_settings(Sizes, file))
    assert ("cannot be read" in error.reason, error.file) == (True, file)
    assert refusal(lambda: read_keys(file, KEYS, fix="name another")).fix == "name another"
    file.mkdir()
    assert "cannot be read" in refusal(lambda: read_settings(Sizes, file)).reason


@pytest.mark.parametrize("name", READERS)
@pytest.mark.usefixtures("new_root")
def test_every_reader_names_its_own_file(name: str) -> None:
    file = paths.conf() / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    for content in (None, b"colour: \xff\n", b"colour: red\n"):
        if content is not None:
            file.write_bytes(content)
        error = refusal(READERS[name])
        assert error.file == file
        assert error.fix
        assert ("unknown key 'colour'" in error.reason) == (content == b"colour: red\n")


def refusal(action: Callable[[], object]) -> StudyError:
    with pytest.raises(StudyError) as caught:
        action()
    return caught.value
