"""The commands of the study itself: data, rows, searches, reports, systems, upkeep. Heavy imports stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from study.base.errors import StudyError
from study.base.registry import GROUPS
from study.cli.shared import Overrides, configured, print_wide

app = typer.Typer()
STUDY, ANALYSES, OWN, UPKEEP = "The study", "Analyses", "A system of your own", "Upkeep"
Name = Annotated[str, typer.Argument(help="The system's name, which becomes that of its files.")]


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
        typer.Option("--replace", help="Replace a row of another profile; with --all: train everything again."),
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Every row of the data set that is missing or stale.")] = False,
    dry: Annotated[bool, typer.Option("--dry", help="With --all: only name the rows, and about how long.")] = False,
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

    `study run system=tfidf protocol=warm` makes one row, `study run --all` all that are missing or stale (data that are
    generated, too).

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
    words, heeded = overrides or [], (*GROUPS, "config", "logger")
    if cfg:
        from omegaconf import OmegaConf

        return typer.echo(OmegaConf.to_yaml(configured(words, heeded, trains=True), resolve=True), nl=False)
    if dry and not every:
        raise StudyError("--dry names the rows of --all", fix="study run --all --dry")
    if every:
        from study.config.compose import load
        from study.data import stages
        from study.search import all_rows

        if not dry and (config := load(words)).dataset.generator:
            for stage in (stages.fetch, stages.prepare, stages.split):
                stage(config)
        failed: list[str] = []
        if dry:
            jobs = all_rows.due(words, failed, every=replace, dry=True)
            typer.echo("\n".join([*(job.name for job in jobs), all_rows.summary(jobs)]))
        else:
            failed = all_rows.run_all(words, launcher, replace=replace)
        return require_none(failed, "rows")
    from study.runner.cluster import run_seeds
    from study.runner.rows import run_row

    config = configured(words, heeded, trains=True)
    run_seeds([config], launcher, replace=replace)
    run_row(config, replace=replace)
    from study.analysis.report.results import outcome, outcome_table
    from study.analysis.report.tables import terminal_table

    dataset, protocol = config.dataset.name, config.protocol.name
    means = outcome(dataset, protocol, config.system.name)
    title = f"{dataset}, protocol {protocol}, {means['n'].max()} tasks: means with 95 % intervals over tasks"
    return print_wide(terminal_table(outcome_table(means), title))


def require_none(failed: list[str], kind: str) -> None:
    """Raise `StudyError` where something failed."""
    if failed:
        raise StudyError(f"{len(failed)} {kind} failed: {'; '.join(failed)}", fix="the same command tries them again")


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
    from study.analysis.report.tables import overall_tables

    print_wide(*overall_tables(configured(overrides, ["dataset"]).dataset.name))


@app.command(rich_help_panel=STUDY)
def tune(
    overrides: Overrides = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where a search under another profile is there.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every search of the data set that is missing or stale.")
    ] = False,
) -> None:
    """Choose a system's hyper-parameters on validation tasks.

    `study tune dataset=task2mcp system=bpr_tuned` has 12 trials (`tuning.trials`) with 0.33 of a run's epochs each
    (`system.rungs`); the first has the values of the system's yaml, the others are drawn from the search space under
    `search`. Trials are scored on the validation part of the protocol under `tuned` in the system's yaml, or of the one
    given as `protocol=...`. With more shares, such as `rungs: [0.11, 0.33, 1.0]`, the best third and the system as it
    is go on to the next one.

    It writes `trials.csv`, `best.yaml` (the values that `study run` then takes) and `record.json` to
    `results/DATASET/tuned/SYSTEM`. A stopped search goes on with the same command, a finished one with more trials:
    `tuning.trials=24`.
    """
    words = overrides or []
    if every:
        from study.search.all_rows import tune_all

        return require_none(tune_all(words), "searches")
    from study.search.tune import tune as stage

    config = configured(words)
    if config.system.tuned and not any(word.startswith("protocol=") for word in words):
        config = configured([*words, f"protocol={config.system.tuned}"])
    return _show_best(stage(config, replace=replace, again=replace))


@app.command(rich_help_panel=STUDY)
def sweep(
    name: Annotated[
        str, typer.Argument(help="A sweep of conf/sweep: fusion_weight, temperature, learning_rate, joint, your own.")
    ],
    overrides: Overrides = None,
    values: Annotated[str | None, typer.Option(help="Other values, for once: --values 0.05,0.07 --name NAME.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Another number of trials of a search, for once.")] = None,
    own: Annotated[str | None, typer.Option("--name", help="A name for other values, trials or settings.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Workers on this machine, each in a process of its own.")] = 1,
    replace: Annotated[bool, typer.Option("--replace", help="Make a finished sweep again.")] = False,
    multirun: Annotated[bool, typer.Option("--multirun", "-m", hidden=True)] = False,
) -> None:
    """Vary a system's settings and measure every value.

    `study sweep temperature dataset=task2mcp --jobs 2`

    `conf/sweep/NAME.yaml` names the system and the values of one or more of its settings; a sweep of your own needs
    `name`, `title`, `system` and `space`. Other values, trials or settings of the system need a name of their own:
    `study sweep temperature system.model.training.epochs=2 --name temperature_short`.

    All workers of a sweep share its trials. After a stop, the same command goes on. Once all trials are finished, it
    writes the tables again without training. One process measures all fusion weights, whatever `--jobs` says.
    """
    from study.search.sweep import load_sweep, renamed, standing
    from study.search.sweep import sweep as stage

    if multirun:
        raise StudyError("a sweep has several values anyway", fix=f"study sweep {name} --values 0.05,0.07 --name NAME")
    words = overrides or []
    protocol = next((word.partition("=")[2] for word in words if word.startswith("protocol=")), None)
    chosen = renamed(load_sweep(name), own, values=values, trials=trials, protocol=protocol)
    config = configured([f"system={chosen.system}", f"protocol={chosen.protocol}", *words])
    folder = stage(chosen, config, jobs=jobs, replace=replace, again=replace)
    _show_best(folder)
    typer.echo("\n".join(standing(folder, chosen)))
    typer.echo(f"figure: notebooks/04_rq3_sensitivity.ipynb, with {chosen.name!r} in `sweeps` of its first cell")


def _show_best(folder: Path) -> None:
    """Say what a search chose, and where its tables are."""
    from study.base.settings import read_yaml

    best = read_yaml(folder / "best.yaml")
    values = ", ".join(f"{name}={value}" for name, value in best["values"].items())
    typer.echo(f"best {best['objective']}: {best['value']:.4f} with {values} ({best['trials']} trials)")
    typer.echo(f"sweep in {folder}")


@app.command(rich_help_panel=STUDY)
def verify(
    paper: Annotated[bool, typer.Option("--paper", help="Every cell of the paper's tables beside ours.")] = False,
) -> None:
    """Compare expected scores (results/expected.yaml) with the runs.

    Verdicts: OK, OKish (within twice the tolerance), FAIL or MISSING. Exits with code 1 if a score fails. With --paper:
    compare with the paper's printed numbers instead; a difference there is no failure.
    """
    if paper:
        from study.analysis.audit.verdicts import verify_paper

        return typer.echo(verify_paper(configured(["dataset=task2mcp"])))
    from study.analysis.report.expected import verify as stage

    verdicts, text = stage()
    typer.echo(text)
    raise typer.Exit(int("FAIL" in verdicts))


@app.command(rich_help_panel=STUDY)
def docs(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail where a page is old.")] = False,
) -> None:
    """Write README and the pages of docs from docs/src, with every number read from its table."""
    from study.analysis.report.pages import render, stale
    from study.base import paths
    from study.base.files import write_text

    pages = render()
    for path in (old := stale(pages)):
        if not check:
            write_text(path, pages[path])
        typer.echo(f"{path.relative_to(paths.root())} {'is not what docs/src gives' if check else 'written'}")
    typer.echo(f"{len(pages) - len(old)} of {len(pages)} pages are as they should be")
    raise typer.Exit(int(check and bool(old)))


@app.command(rich_help_panel=ANALYSES)
def analyse(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP[/NAME]]... [KEY=VALUE]...", help="audit dataset=task2mcp")
    ] = None,
    every: Annotated[bool, typer.Option("--list", help="Print all analyses with their questions instead.")] = False,
) -> None:
    """Make the tables of the analyses, by group or name.

    `study analyse audit usefulness/steps dataset=task2mcp`

    A group runs all of its analyses but the slow ones, which are run by name; without a group, all groups run. A slow
    one that was stopped goes on. Tables go to `results/DATASET`, each group's to a folder, with a record beside them.
    """
    from study.analysis.framework import all_analyses, run_analyses

    if every:
        for name, entry in all_analyses().items():
            typer.echo(f"{name}{' (slow)' if entry.slow else ''}: {entry.question}")
        return
    config = configured([word for word in words or [] if "=" in word], ["dataset"])
    for path in run_analyses([word for word in words or [] if "=" not in word], config):
        typer.echo(path)


@app.command(rich_help_panel=ANALYSES)
def notebooks(
    overrides: Overrides = None,
    only: Annotated[list[str] | None, typer.Option(help="Just this one, such as 08_useful; may be repeated.")] = None,
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
        folder = program.run(config)
        for path in (folder / "agreement.csv", folder / "metrics.csv"):
            typer.echo(f"\n{path}\n{path.read_text(encoding='utf-8')}")


@app.command(rich_help_panel=OWN)
def new(name: Name) -> None:
    """Write class and yaml of a system of your own, which runs."""
    from study.runner.own_system import new_system

    typer.echo("\n".join(map(str, new_system(name))))
    typer.echo(f"edit both, then: study check {name}; study run system={name} dataset=task2mcp")


@app.command(rich_help_panel=OWN)
def check(name: Name) -> None:
    """Examine a system on toys, in seconds (a model of RecBole, trained in processes of its own, in minutes).

    Yaml, shapes, NaN, leaks, determinism, resuming, and what it learns.
    """
    from study.config.compose import load
    from study.runner.own_system import examine
    from study.search.tune import first_point

    for line in examine(name):
        typer.echo(line)
    if (system := load([f"system={name}"]).system).search:
        first_point(load([f"system={name}", *([f"protocol={system.tuned}"] if system.tuned else [])]))
        typer.echo("search space: holds the present values")


@app.command(rich_help_panel=OWN)
def remove(
    name: Name,
    overrides: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove what is listed.")] = False,
) -> None:
    """List all that there is of a system or a sweep, and remove it (--yes)."""
    from study.runner.own_system import remove_system

    if overrides:
        raise StudyError("a system or a sweep is removed from every data set", fix=f"study remove {name}")
    typer.echo("\n".join(remove_system(name, really=yes)))
    typer.echo(
        "removed; study report makes the tables without it" if yes else f"to remove it: study remove {name} --yes"
    )


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
    differing = [name for name, result in checked.items() if result.difference]
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
        Literal["model", "trec", "recbole"],
        typer.Option(help="model: for `study recommend`; trec: run files; recbole: atomic files."),
    ] = "model",
) -> None:
    """Save a system for `study recommend`, or write other forms.

    `--form model`: T2MRec, trained once under `cold`, or `system=field_dense`. `trec` (the runs of the protocol, of all
    systems or of `system=...`) and `recbole` (all splits) go to `data/export`, and let others run on exactly these
    splits and score exactly these runs.
    """
    from study.base import paths

    config, folder = configured(overrides), paths.root() / "data" / "export"
    if form == "model":
        from study.search.export import export as stage

        return typer.echo(f"model in {stage(config)}")
    from study.runner import exchange

    if form == "trec":
        systems = [word.partition("=")[2] for word in overrides or [] if word.startswith("system=")]
        written = exchange.export_runs(config, folder / config.dataset.name / config.protocol.name, systems)
    else:
        written = exchange.export_splits(config, folder)
    return typer.echo(f"{len(written)} files in {folder}")


@app.command(rich_help_panel=UPKEEP)
def doctor(overrides: Overrides = None) -> None:
    """Say what this machine lacks for the study, with each fix."""
    from rich.table import Table

    from study.runner.doctor import FAULT, OK, examine

    table, checks = Table("what", "state", "is", "fix"), list(examine(configured(overrides, ["dataset"]).dataset.name))
    for each in checks:
        table.add_row(*each[:3], "" if each.state == OK else each.fix)
    print_wide(table)
    if faults := [each.what for each in checks if each.state == FAULT]:
        raise StudyError(f"faults: {', '.join(faults)}", fix="see the table")


@app.command(rich_help_panel=UPKEEP)
def bench(overrides: Overrides = None) -> None:
    """Measure speed and memory against this machine's limits.

    Training, evaluation and one recommendation (efficiency.csv).
    """
    from study.analysis.overall.bench import bench as stage

    typer.echo(stage(configured(overrides, trains=True)))
