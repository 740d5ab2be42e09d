"""Files and commands that README and docs name exist."""

import re

import pytest
from typer.core import TyperGroup as Group
from typer.main import get_command

from study.cli.main import app
from tests.tiny_study import REPOSITORY as ROOT

PATHS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = {str(path.relative_to(ROOT)): path.read_text() for path in PATHS}
TEXT = "\n".join(DOCUMENTS.values())
CODE = re.compile(r"```bash\n.*?```|`[^`\n]+`", re.DOTALL)
# Pages about files that their reader writes.
OWN_FILES = ("docs/extending.md",)
TRACKED = re.compile(r"`((?:conf|src|baselines|tests|docs|notebooks|results|figures)/[\w./-]*)`")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_file_that_a_document_names_exists(name: str) -> None:
    linked = [(ROOT / name).parent / path for path in re.findall(r"\]\(([\w./-]+)\)", DOCUMENTS[name])]
    named = [] if name in OWN_FILES else [ROOT / path for path in TRACKED.findall(DOCUMENTS[name])]
    assert [str(path) for path in linked + named if not path.exists()] == []


def test_commands_that_documents_name_exist() -> None:
    commands = get_command(app)
    assert isinstance(commands, Group)
    named = re.findall(r"(?m)(?:^|`)study ([a-z]+)(?: ([a-z][a-z-]*)\b)?", "\n".join(CODE.findall(TEXT)))
    assert len(named) >= 20
    for name, second in named:
        assert name in commands.commands, name
        command = commands.commands[name]
        # What follows a group's name is a command of it; elsewhere it is an argument, such as `dataset=task2mcp`.
        if isinstance(command, Group) and second:
            assert second in command.commands, f"{name} {second}"
