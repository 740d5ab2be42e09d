"""The `study` command. Heavy imports stay inside the commands, so that `study recommend` starts fast."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from study.base.errors import StudyError, explained
from study.cli.agent import app as agent
from study.cli.analyse import analyse
from study.cli.catalog import app as catalog
from study.cli.catalog import install, uninstall
from study.cli.judge import app as judging
from study.cli.llm import app as llm
from study.cli.overrides import Overrides, configured
from study.cli.recommend import recommend
from study.cli.search import sweep, tune
from study.cli.systems import check, new, remove
from study.cli.terminal import drop_unwritten_output, require_utf8, show_anything
from study.cli.tools import app as tools
from study.cli.verify import docs, verify

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Reproduce T2MRec: fetch and prepare data, run systems, report, recommend. Start with `make repro`.\n\n"
    "Stages take Hydra overrides: `dataset=task2mcp protocol=warm system=tfidf profile=smoke`, or any key of `conf/`.",
)
INTERRUPTED = 130  # the exit code after Ctrl-C, which Typer gives before anybody else hears of it
SERVERS, STUDY, ANALYSES, OWN, UPKEEP = "MCP servers", "The study", "Analyses", "A system of your own", "Upkeep"


@app.command(rich_help_panel=STUDY)
def fetch(overrides: Overrides = None) -> None:
    """Bring a data set's raw files into data/raw, or generate them."""
    from study.data.stages import fetch as stage

    typer.echo(f"raw files in {stage(configured(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def prepare(overrides: Overrides = None) -> None:
    """Check and clean the raw files.

    Every change is counted in results/DATASET/tables/cleaning.csv.
    """
    from study.data.stages import prepare as stage

    typer.echo(f"prepared tables in {stage(configured(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def split(overrides: Overrides = None) -> None:
    """Split the prepared data for every protocol."""
    from study.data.stages import split as stage

    typer.echo(f"splits in {stage(configured(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def run(
    overrides: Overrides = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Replace results that were made under another profile; with --all: train everything again, and keep "
            "nothing of earlier trainings.",
        ),
    ] = False,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Every row of the data set that is missing or stale: study run --all dataset=synthetic."
        ),
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="With --all: name what would be made, and about how long it takes.")
    ] = False,
    cfg: Annotated[
        Literal["job"] | None, typer.Option("--cfg", "-c", help="Print the composed configuration, and run nothing.")
    ] = None,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", hidden=True)] = False,
    launcher: Annotated[
        Literal["local", "ray", "slurm"],
        typer.Option(help="ray (RAY_ADDRESS) or slurm: seeds on a cluster, see docs/scaling.md."),
    ] = "local",
) -> None:
    """Fit a system with every seed and measure it on test tasks.

    `study run system=tfidf protocol=warm` makes one row, `study run --all` all that are missing or stale.

    `study run system=?` lists the systems and `protocol=?` the protocols; `protocols` in `conf/system/SYSTEM.yaml` says
    where it applies.

    A row has three parts below `results/DATASET/rows`, in files that it shares with the systems of its folder of
    `conf/system`: `per_task` (metrics of each task and seed), `top10` (the servers named) and `records` (settings,
    versions, seconds). It ends with means and intervals beside T2MRec; `study report` takes it into the tables. A
    stopped run keeps its finished seeds and goes on with the same command.

    `trainer=gpu` trains on a GPU, in a row called SYSTEM_gpu (docs/scaling.md). `logger=tensorboard` (csv, mlflow)
    also writes settings, losses and means below `.cache/logs`.

    With other settings than those of `conf/system` it needs a name of its own, and so gets a row of its own:
    `study run system=t2mrec system.model.scoring.anchors=10 system.name=t2mrec_ten_anchors`.
    """
    if multirun:
        fix = "study sweep NAME --values 0.05,0.07 --name NAME for several values, study run --all for several rows"
        raise StudyError("study run makes one row", fix=fix)
    if cfg:
        from omegaconf import OmegaConf

        typer.echo(OmegaConf.to_yaml(configured(overrides, trains=True, logs=True), resolve=True), nl=False)
        return
    if dry and not every:
        raise StudyError("--dry names the rows of --all", fix="study run --all --dry")
    if every:
        from study.search import all_rows

        failed: list[str] = []
        if dry:
            jobs = all_rows.due(overrides or [], failed, every=replace, dry=True)
            for job in jobs:
                typer.echo(job.name)
            typer.echo(all_rows.summary(jobs))
        else:
            failed = all_rows.run_all(overrides or [], launcher, replace=replace)
        if failed:
            raise StudyError(f"{len(failed)} rows failed: {'; '.join(failed)}", fix="the same command tries them again")
        return
    from study.runner.cluster import run_seeds
    from study.runner.rows import run_row

    config = configured(overrides, trains=True, logs=True)
    run_seeds([config], launcher, replace=replace)
    run_row(config, replace=replace)
    from rich.console import Console

    from study.analysis.report.results import outcome, outcome_table
    from study.analysis.report.tables import WIDTH, terminal_table

    dataset, protocol = config.dataset.name, config.protocol.name
    found = outcome(dataset, protocol, config.system.name)
    title = f"{dataset}, protocol {protocol}, {found['n'].max()} tasks: means with 95 % intervals over tasks"
    Console(width=WIDTH).print(terminal_table(outcome_table(found), title))


@app.command(rich_help_panel=STUDY)
def report(overrides: Overrides = None) -> None:
    """Redo the tables of a data set from its runs; train nothing."""
    from study.analysis.report.main import report as stage

    typer.echo(f"tables in {stage(configured(overrides, ['dataset']))}; study show prints them")


@app.command(rich_help_panel=STUDY)
def show(overrides: Overrides = None) -> None:
    """Print a data set's results, one table per protocol.

    All columns are in results/DATASET/tables/overall.md.
    """
    from rich.console import Console

    from study.analysis.report.tables import WIDTH, overall_tables

    console = Console(width=WIDTH)
    for table in overall_tables(configured(overrides, ["dataset"]).dataset.name):
        console.print(table)


@app.command(rich_help_panel=UPKEEP)
def reference(
    systems: Annotated[list[str] | None, typer.Argument(help="Only these; `evaluator` is ranking and metrics.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Store the new scores and raise the versions.")] = False,
) -> None:
    """Compare every system's scores on toy data with stored ones.

    They are in tests/reference; the comparison takes minutes. A change of scores makes the rows of a system stale once
    `--update` has raised its version.
    """
    from study.runner import reference as stored

    checked = stored.check(systems)
    differing = [name for name, found in checked.items() if found.difference]
    for name in differing:
        typer.echo(f"{name}: {checked[name].difference}")
    if update:
        for name, version in stored.update(checked).items():
            typer.echo(f"{name}: version {version}")
    elif differing:
        fix = f"undo the change, or: study reference --update {' '.join(differing)}; their rows are then stale"
        raise StudyError(f"{len(differing)} differ from their reference scores", file=stored.scores_file(), fix=fix)


@app.command(rich_help_panel=UPKEEP)
def export(
    overrides: Overrides = None,
    form: Annotated[
        Literal["model", "trec", "recbole", "croissant"],
        typer.Option(
            "--form",
            help="model: for `study recommend`; trec: run files of the protocol, of all systems or of system=...; "
            "recbole: atomic files of all splits; croissant: all result tables.",
        ),
    ] = "model",
    output: Annotated[
        Path | None,
        typer.Option(help="The folder (default: data/export; croissant: the results')."),
    ] = None,
) -> None:
    """Save a system for `study recommend`, or write other forms.

    `--form model`: T2MRec, trained once under `cold`, or `system=field_dense`. `trec` and `recbole` let others run on
    exactly these splits and score exactly these runs. `croissant` describes the result tables for an archive.
    """
    from study.base import paths

    config, target = configured(overrides), output or paths.root() / "data" / "export"
    if form == "model":
        from study.search.export import export as stage

        typer.echo(f"model in {stage(config)}")
        return
    if form == "croissant":
        from study.judging.croissant import export_croissant

        name = config.dataset.name
        typer.echo(f"description in {export_croissant(name, output or paths.results(name))}")
        return
    from study.runner import exchange

    if form == "trec":
        asked = [word.partition("=")[2] for word in overrides or [] if word.startswith("system=")]
        written = exchange.export_runs(config, target / config.dataset.name / config.protocol.name, asked)
    else:
        written = exchange.export_splits(config, target)
    typer.echo(f"{len(written)} files in {target}")


@app.command(rich_help_panel=ANALYSES)
def notebooks(
    overrides: Overrides = None,
    only: Annotated[list[str] | None, typer.Option(help="Just this one, such as 05b_judged; may be repeated.")] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Just those of which something has changed.")] = False,
) -> None:
    """Execute the notebooks of a data set.

    They go to results/DATASET/notebooks, figures to figures/DATASET.
    """
    from study.analysis.notebooks import execute_all

    for path in execute_all(configured(overrides, ["dataset"]).dataset.name, only or (), changed=changed):
        typer.echo(path)


@app.command(rich_help_panel=ANALYSES)
def authors(
    action: Annotated[
        Literal["prepare", "run"], typer.Argument(help="Convert the release for the program, or run it too.")
    ],
    overrides: Overrides = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="A trial with so many epochs, which stays out of results.")
    ] = None,
) -> None:
    """Run the authors' own program, or convert the data for it.

    `study authors run dataset=task2mcp` takes an hour or more.

    `prepare` writes the three files that it reads below data/authors/DATASET, and says what was converted. `run` does
    that too, fetches the program at its pinned commit, checks its SHA-256, runs it in a process of its own, and
    compares its top tens with those of results/DATASET/authors/top10.csv. A finished run is not run again.
    """
    from study.runner import authors_program as program

    config = configured(overrides)
    typer.echo(program.prepare(config).to_string(index=False))
    if action == "run":
        folder = program.run(config, epochs)
        for path in sorted(folder.glob("*.csv")):
            if path.name in ("metrics.csv", "agreement.csv"):
                typer.echo(f"\n{path}\n{path.read_text(encoding='utf-8')}")


@app.command(rich_help_panel=UPKEEP)
def doctor(overrides: Overrides = None) -> None:
    """Say what this machine lacks for the study, with each fix."""
    from rich.console import Console
    from rich.table import Table

    from study.runner.doctor import FAULT, OK, examine

    table, checks = (
        Table("what", "state", "found", "fix"),
        list(examine(configured(overrides, ["dataset"]).dataset.name)),
    )
    for each in checks:
        table.add_row(*each[:3], "" if each.state == OK else each.fix)
    Console().print(table)
    if wrong := [each.what for each in checks if each.state == FAULT]:
        raise StudyError(f"faults: {', '.join(wrong)}", fix="see the table")


@app.command(rich_help_panel=UPKEEP)
def bench(overrides: Overrides = None) -> None:
    """Measure speed and memory against this machine's limits.

    Training, evaluation and one recommendation (efficiency.csv).
    """
    from study.analysis.overall.bench import bench as stage

    typer.echo(stage(configured(overrides, trains=True)))


# Each module holds the command lines alone and imports what is heavy inside its commands.
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    SERVERS: (recommend, install, uninstall),
    STUDY: (tune, sweep, verify, docs),
    ANALYSES: (analyse,),
    OWN: (new, check, remove),
}
for _panel, _commands in PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(_command)
for _name, _sub_app in {"agent": agent, "catalog": catalog, "llm": llm, "tools": tools}.items():
    app.add_typer(_sub_app, name=_name, rich_help_panel=SERVERS)
app.add_typer(judging, name="judge", rich_help_panel=ANALYSES)


def main() -> None:
    """Run the command line; a problem that the user can mend ends with its explanation and exit code 2."""
    # Libraries announce what they load; only the study's own messages and everybody's warnings are shown.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for name in ("study", "baselines"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # repeats at length what the error says
    try:
        show_anything()
        require_utf8(sys.argv[1:])
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk behind `>` is found out here, and not when Python ends
    except RecursionError:
        fix = "look for brackets without end in the yaml or JSON file that the command reads"
        sys.stderr.write(f"error: {StudyError('a file is nested too deeply to be read', fix=fix)}\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        sys.stderr.write("stopped; the same command goes on from here\n")
        sys.exit(INTERRUPTED)
    except Exception as error:
        if (known := explained(error)) is None:
            raise
        sys.stderr.write(f"error: {known}\n")
        drop_unwritten_output()
        sys.exit(2)
