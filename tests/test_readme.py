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
CODE = re.compile(r"```(?:ba)?sh\n.*?```|`[^`\n]+`", re.DOTALL)
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


def test_options_and_targets_that_documents_name_exist() -> None:
    lines = [line.strip("`") for code in CODE.findall(TEXT) for line in code.splitlines()]
    commands, targets = get_command(app), set(re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text()))
    assert isinstance(commands, Group)
    checked = 0
    for line in lines:
        line = line.partition("#")[0]
        for part in re.split(r"\|\||&&|[|;]", line):
            if match := re.match(r"\s*(?:\w+=\S+ )*make ([a-z][\w-]*)", part):
                assert match[1] in targets, line
            words = re.sub(r"^\s*(?:\w+=\S+ )*", "", part).split()
            if words[:1] != ["study"] or len(words) < 2:
                continue
            command = commands.commands[words[1]]
            if isinstance(command, Group):
                command = command.commands[words[2]] if len(words) > 2 and words[2] in command.commands else command
            known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
            for option in re.findall(r"(?<!\S)(--[a-z][\w-]*)", part):
                assert option in known | {"--help"}, line
                checked += 1
    assert checked >= 30
