"""Files of ``conf/`` are read strictly: whatever is wrong, the error names the file and the keys that it must have."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from study.base.errors import StudyError
from study.base.settings import read_keys, read_settings


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
# Ten lines that stand for ten thousand million values, below a key that is known.
BOMB = "names:\n- &a0 [x]\n" + "".join(f"- &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))
WRONG = {
    b"width: [3\n": "cannot be read (while parsing",
    b"": "cannot be read (NoneType instead of a mapping",
    b"width: 3\n\tdepth: 2\n": "cannot be read (while scanning",
    b"width: !!python/object/apply:os.getcwd []\n": "cannot be read (could not determine a constructor",
    "width: 3\ndepth: 2\nnames: [ä]\n".encode("latin-1"): "cannot be read ('utf-8' codec can't decode",
    b"- width\n- depth\n- names\n": "list instead of a mapping",
    b"width: 3\nnames: []\n": "missing key 'depth'",
    b"width: 3\ndepth: 2\nnames: []\ncolour: red\n": "unknown key 'colour'",
    b"width: 3\ndepht: 2\nnames: []\n": "unknown key 'depht'",
    b"width: 3\ndepth: 2\nnames: []\nwidth: 4\n": "cannot be read (the key 'width' is written twice, line 1",
    f"{BOMB}width: *a9\ndepth: 2\n".encode(): "cannot be read (it holds an alias",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sizes.yaml"


def refusals(file: Path) -> list[StudyError]:
    """What either reader says of a file."""
    caught = []
    for read in (lambda: read_keys(file, KEYS), lambda: read_settings(Sizes, file)):
        with pytest.raises(StudyError) as error:
            read()
        caught.append(error.value)
    return caught


def test_a_right_file_is_read_and_what_its_kind_finds_wrong_is_said_with_the_file(file: Path) -> None:
    file.write_text("names: [ä, b]\nwidth: 3  # int\ndepth: 2\n", encoding="utf-8")
    assert read_keys(file, KEYS) == RIGHT
    assert read_settings(Sizes, file) == Sizes(3, 2, ["ä", "b"])
    file.write_text(yaml.safe_dump(RIGHT | {"width": 0}))
    with pytest.raises(StudyError) as caught:
        read_settings(Sizes, file)
    assert (caught.value.reason, caught.value.file, caught.value.column) == ("too narrow", file, "width")


@pytest.mark.parametrize("content", WRONG)
def test_a_wrong_file_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    for error in refusals(file):
        assert WRONG[content] in error.reason
        assert error.file == file
        assert error.fix == ("correct the file" if "cannot" in error.reason else "its keys are: width, depth, names")


def test_a_missing_file_is_named(file: Path) -> None:
    for _ in range(2):
        assert [("cannot be read" in error.reason, error.file) for error in refusals(file)] == [(True, file)] * 2
        file.mkdir(exist_ok=True)
