"""The `study` command. Heavy imports stay inside the commands, so that `study recommend` starts fast."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence

from typer import Typer

from study.base.errors import StudyError, explained, printable
from study.cli import agent, catalog, judge, llm, recommend, study, tools

app = Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Reproduce T2MRec: fetch and prepare data, run systems, report, recommend. Start with `make repro`.\n\n"
    "Stages take Hydra overrides: `dataset=task2mcp protocol=warm system=tfidf profile=smoke`, or any key of `conf/`.",
)
SERVERS = "MCP servers"
INTERRUPTED = 130  # the exit code after Ctrl-C, which Typer gives before anybody else hears of it

app.add_typer(study.app)
for _command in (recommend.recommend, catalog.install, catalog.uninstall):
    app.command(rich_help_panel=SERVERS)(_command)
for _module in (agent, catalog, llm, tools):
    app.add_typer(_module.app, name=_module.__name__.rpartition(".")[2], rich_help_panel=SERVERS)
app.add_typer(judge.app, name="judge", rich_help_panel=study.ANALYSES)


def require_utf8(words: Sequence[str]) -> None:
    """Raise `StudyError` for the first argument whose bytes are no UTF-8; Python passes them on as lone surrogates."""
    for number, word in enumerate(words, start=1):
        if (readable := word.encode(errors="surrogateescape").decode(errors="replace")) != word:
            fix = "set the terminal to UTF-8 and write it again"
            raise StudyError(f"argument {number} is not UTF-8: {printable(readable)!r}", fix=fix)


def main() -> None:
    """Run the command line; a problem that the user can mend ends with its explanation and exit code 2."""
    # Libraries announce what they load; only the study's own messages and everybody's warnings are shown.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # repeats at length what the error says
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # letters that its encoding lacks are written as escapes
            stream.reconfigure(errors="backslashreplace")
    try:
        require_utf8(sys.argv[1:])
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk behind `>` is found out here, and not when Python ends
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stderr.write("stopped; the same command goes on from here\n")
        sys.exit(INTERRUPTED)
    except RecursionError:
        fix = "look for brackets without end in the yaml or JSON file that the command reads"
        sys.stderr.write(f"error: {StudyError('a file is nested too deeply to be read', fix=fix)}\n")
        sys.exit(2)
    except Exception as error:
        if (explanation := explained(error)) is None:
            raise
        sys.stderr.write(f"error: {explanation}\n")
        try:
            sys.stdout.flush()
        except OSError:  # Python would try once more at its end, with another exit code
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
