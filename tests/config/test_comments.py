"""Every key of conf/ says where it stands what it is: type and meaning."""

import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
# The paper's own cells are data with their places beside them.
FILES = sorted(path for path in CONF.rglob("*.yaml") if path.parent.name != "paper")
# Keys that Hydra defines.
HYDRA = ("defaults", "_target_")
TYPE = re.compile(r"\b(int|float|str|bool|list|dict|path|ints|floats|null|date|class|search space)\b| \| |->")


def keys(node: yaml.Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, bool, bool, bool]]:
    """Every key below a node: its path, its line (from 0), whether it stands in a flow mapping such as {a: 1}, whether
    it is the heading of a section (of lines with keys of their own), and whether it is the row of a table.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            section = isinstance(value, yaml.MappingNode) and not value.flow_style
            row = isinstance(value, yaml.MappingNode | yaml.SequenceNode) and bool(value.flow_style)
            yield below, key.start_mark.line, bool(node.flow_style), section, row and bool(path)
            yield from keys(value, below)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from keys(value, path)


def comment(lines: list[str], number: int) -> str:
    """The comment behind the key in a line, or the comment lines right above it."""
    _, mark, behind = re.sub(r"\"[^\"]*\"|'[^']*'", "", lines[number]).partition(" #")
    if mark:
        return behind
    above = []
    while number > 0 and re.match(r"\s*#", lines[number - 1]) and indent(lines[number - 1]) == indent(lines[number]):
        number -= 1
        above.append(lines[number])
    return "\n".join(above)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def bases(path: Path, text: str, root: yaml.Node) -> list[Path]:
    """The files that a file inherits from, and one that it names as the place where its keys are explained."""
    named = [CONF.parent / name for name in re.findall(r"every key is explained in (conf/[\w/]+\.yaml)", text)]
    if named:
        return [base for base in named if base != path]
    for key, value in root.value:
        if key.value == "defaults" and isinstance(value, yaml.SequenceNode):
            names = [item.value for item in value.value if isinstance(item, yaml.ScalarNode)]
            return [path.parent / f"{name}.yaml" for name in names if name != "_self_"]
    defaults = path.with_name("_defaults.yaml")
    return [defaults] if defaults.exists() and path != defaults else []


def documented(path: Path) -> tuple[dict[tuple[str, ...], bool], list[tuple[str, ...]]]:
    """Key path -> whether it is explained, in this file or one that it inherits from; and the keys of this file."""
    text = path.read_text(encoding="utf-8")
    lines, root = text.splitlines(), yaml.compose(text)
    known: dict[tuple[str, ...], bool] = {}
    for base in bases(path, text, root):
        known |= documented(base)[0]
    # What a file says of itself at its top counts for the keys that it names there with a colon.
    top = "\n".join(line for line in lines if line.startswith("#"))
    head = "\n".join(takewhile(lambda line: line.startswith("#"), lines))
    own, said, waiting = [], {}, []
    for at, line, flow, section, row in keys(root):
        said[at] = comment(lines, line)
        parent = at[:-1]
        explained = bool(TYPE.search(said[at])) or re.search(rf"^# {re.escape(at[-1])}: .*", top, re.MULTILINE)
        # A table of "this -> that" explains its entries, and so does the text above a table that names their keys; a
        # line explains its own flow mapping.
        in_table = any("->" in said.get(at[:depth], "") for depth in range(1, len(at))) or "->" in head
        above = "\n".join(said.get(at[:depth], "") for depth in range(1, len(at)))
        in_table = in_table or bool(re.search(rf"\b{re.escape(at[-1])}: ", above)) or (row and bool(said.get(parent)))
        in_line = flow and known.get(parent, False)
        # What is searched is explained where its value stands, below `model`.
        searched = at[0] == "search" and len(at) > 1 and ("model", *at[1].split("."))
        known[at] = bool(known.get(at) or explained or in_table or in_line or section or set(at) & set(HYDRA))
        if searched:
            waiting.append((at, searched))
        own.append(at)
    for at, value in waiting:
        known[at] = known[at] or known.get(value, False)
    return known, own


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_every_key_has_type_and_meaning(path: Path) -> None:
    known, own = documented(path)
    assert [".".join(at) for at in own if not known[at]] == []


def test_the_check_sees_a_key_without_a_comment(tmp_path: Path) -> None:
    base = "a: 1  # int: number of things\nb: {c: 1}  # dict: more\nt:  # name -> count\n  x: 2\n"
    (tmp_path / "base.yaml").write_text(base)
    path, own = tmp_path / "child.yaml", "b:\n  c: 2\nf: 'text # not a comment'\ng: 1  # a thing\n"
    path.write_text(f"defaults: [base, _self_]\na: 2\nd: 3\n# float: a share\ne: 0.5\n{own}")
    known, own = documented(path)
    assert [".".join(at) for at in own if not known[at]] == ["d", "f", "g"]
    assert all(documented(tmp_path / "base.yaml")[0].values())
    assert len(FILES) > 60
