"""`study recommend --system t2mrec` as it is typed: what it prints and warns of, and that its table fits a terminal."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from study.cli import main as cli
from study.config.compose import load
from study.errors import StudyError
from study.pipeline.export import export
from study.recommend.contract import Recommendation
from study.recommend.saved import folder_of
from study.recommend.t2mrec import Recommender
from tests.tiny_study import TINY

URL = "https://github.com/someone-with-a-long-name/a-repository-with-a-name-that-no-column-of-a-table-could-ever-hold"


@pytest.fixture(scope="module")
def exported(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny study with a saved model."""
    root = tmp_path_factory.mktemp("exported") / "study"
    shutil.copytree(prepared_root, root, symlinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("T2M_ROOT", str(root))
        export(load([*TINY, "protocol=warm"]))
    return root


@pytest.fixture
def ask(exported: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Run `study recommend` with the words given; returns what it printed and what it said beside that."""
    monkeypatch.setenv("T2M_ROOT", str(exported))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["study", "recommend", "--system", "t2mrec", *words])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        printed = capsys.readouterr()
        assert not stopped.value.code, printed.err
        return printed.out, printed.err

    return run


def test_export_takes_the_protocol_from_the_configuration(exported: Path) -> None:
    record = json.loads((exported / "models" / "synthetic" / "t2mrec" / "record.json").read_text())
    assert record["protocol"] == "warm"


def test_export_under_a_protocol_that_does_not_apply(root: Path) -> None:
    with pytest.raises(StudyError, match="not applicable under 'loo99'"):
        export(load([*TINY, "protocol=loo99"]))


def test_answer_without_anything_unknown_warns_of_nothing(ask, exported: Path) -> None:
    model = Recommender.load(folder_of("synthetic", "t2mrec"))
    category, leaf = next(
        (one, two)
        for one, two in zip(model.structure.category, model.structure.subcategory, strict=True)
        if one and two
    )
    words = ("--language", "Python", "--theme", model.themes[0].upper(), "--category", category, "--subcategory", leaf)
    out, err = ask(model.cards[0]["description"], *words, "--json")
    answer = json.loads(out)
    assert answer["warnings"] == []
    assert err == ""
    assert answer["subcategory"] == leaf
    assert len(answer["recommendations"]) == 5


def test_subcategory_changes_the_structural_score(ask) -> None:
    model = Recommender.load(folder_of("synthetic", "t2mrec"))
    server = next(card for card in model.cards if card["category"] and card["subcategory"])
    with_leaf, without = (
        {
            item["server_id"]: item["features"]["category"]
            for item in json.loads(ask("x", "--category", server["category"], *more, "-k", "60", "--json")[0])[
                "recommendations"
            ]
        }
        for more in (("--subcategory", server["subcategory"]), ())
    )
    assert with_leaf[server["id"]] == 1.0
    assert without[server["id"]] == 0.5


@pytest.mark.parametrize(
    ("words", "warning"),
    [
        (["--language", "Pythn"], "no server is written in 'pythn' (nearest: 'python'"),
        (["--theme", "qwertyuiop"], "unknown theme 'qwertyuiop'"),
        (["--category", "qwertyuiop"], "unknown category 'qwertyuiop'"),
        (["--subcategory", "anything"], "counts only together with its category"),
    ],
)
def test_unknown_value_is_warned_of_on_stderr_and_in_json(ask, words: list[str], warning: str) -> None:
    out, err = ask("read a file", *words, "--json")
    assert warning in err
    assert any(warning in line for line in json.loads(out)["warnings"])
    out, err = ask("read a file", *words)
    assert warning in err
    assert warning not in out


def test_unknown_subcategory_of_a_known_category(ask) -> None:
    category = next(name for name in Recommender.load(folder_of("synthetic", "t2mrec")).structure.category if name)
    _, err = ask("read a file", "--category", str(category), "--subcategory", "qwertyuiop")
    assert f"unknown subcategory 'qwertyuiop' of {str(category)!r}" in err


def test_request_of_unknown_words_is_warned_of(ask) -> None:
    out, err = ask("qwertyuiop zxcvbnm", "--json")
    assert "no word of the request" in err
    assert len(json.loads(out)["warnings"]) == 1


def found(url: str, name: str = "A server") -> Recommendation:
    return Recommendation(1, 1, name, url, 0.5, {"semantic": 0.4, "structural": 0.3}, stage="anchor")


def test_table_fits_eighty_columns_and_addresses_stay_whole(ask) -> None:
    out, _ = ask("read a file", "-k", "7")
    table = [line for line in out.splitlines() if line and line[0] in "┏┃┡│└"]
    assert len(table) > 7
    assert max(len(line) for line in table) <= 80
    assert len(re.findall(r"^ +\d+ https?://\S+$", out, re.MULTILINE)) == 7


def test_long_address_is_not_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cli.show_recommendations([found(URL)], title="T", caption="C")
    assert f"  1 {URL}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "linked"), [(URL, True), ("javascript:alert(1)", False), ("https://a.b/\x1b]8;;evil", False)]
)
def test_terminal_that_knows_links_gets_them_for_web_addresses_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str, linked: bool
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    cli.show_recommendations([found(url, name="[link=https://evil.example]name[/link]")], title="T", caption="C")
    out = capsys.readouterr().out
    assert ("\x1b]8;" in out) is linked
    assert "[link=" in out
    assert "]8;;evil" not in out.replace(" ]8;;evil", "")
