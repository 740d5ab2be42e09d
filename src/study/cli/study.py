"""The commands of the study itself: data, rows, searches, reports, systems, upkeep. Heavy imports stay inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Exit, Option, Typer, echo

from study.base.errors import StudyError
from study.base.registry import GROUPS
from study.cli.shared import Overrides, load_configuration, print_wide

app = Typer()
STUDY, ANALYSES, OWN, UPKEEP = "The study", "Analyses", "A system of your own", "Upkeep"
Name = Annotated[str, Argument(help="The system's name, which becomes that of its files.")]
Multirun = Annotated[bool, Option("--multirun", "-m", hidden=True)]


@app.command(rich_help_panel=STUDY)
def fetch(overrides: Overrides = None) -> None:
    """Bring a data set's raw files into data/raw, or generate them."""
    from study.data.stages import fetch as stage

    echo(f"raw files in {stage(load_configuration(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def prepare(overrides: Overrides = None) -> None:
    """Check and clean the raw files (changes: tables/cleaning.csv)."""
    from study.data.stages import prepare as stage

    echo(f"prepared tables in {stage(load_configuration(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def split(overrides: Overrides = None) -> None:
    """Split the prepared data for every protocol."""
    from study.data.stages import split as stage

    echo(f"splits in {stage(load_configuration(overrides, ['dataset']))}")


@app.command(rich_help_panel=STUDY)
def run(
    overrides: Overrides = None,
    replace: Annotated[bool, Option("--replace", help="Also a row of another profile; with --all: every row.")] = False,
    every: Annotated[bool, Option("--all", help="Every row of the data set that is missing or stale.")] = False,
    dry: Annotated[bool, Option("--dry", help="With --all: only name the rows, and about how long.")] = False,
    cfg: Annotated[Literal["job"] | None, Option("--cfg", "-c", help="Print the configuration, run nothing.")] = None,
    multirun: Multirun = False,
    launcher: Annotated[Literal["local", "ray", "slurm"], Option(help="Where seeds run: docs/scaling.md.")] = "local",
) -> None:
    """Fit a system with every seed and measure it on test tasks.

    `study run system=tfidf protocol=warm` makes one row, `study run --all` all that are missing or stale. `system=?`
    and `protocol=?` list what there is.

    A row lies in `results/DATASET/rows`: `per_task` (metrics of each task and seed), `top10` (the servers named) and
    `records` (settings, versions, seconds). A stopped run goes on with the same command.

    `trainer=gpu` trains on a GPU, in a row called SYSTEM_gpu. `logger=tensorboard` (csv, mlflow) also writes below
    `.cache/logs`. Settings of your own need a name of their own:
    `study run system=t2mrec system.model.scoring.anchors=10 system.name=t2mrec_ten_anchors`.
    """
    if multirun:
        fix = "study sweep NAME --values 0.05,0.07 --name NAME for several values, study run --all for several rows"
        raise StudyError("study run makes one row", fix=fix)
    words, heeded = overrides or [], (*GROUPS, "config", "logger")
    if cfg:
        from omegaconf import OmegaConf

        return echo(OmegaConf.to_yaml(load_configuration(words, heeded, trains=True), resolve=True), nl=False)
    if dry and not every:
        raise StudyError("--dry names the rows of --all", fix="study run --all --dry")
    if every:
        from study.config.compose import load
        from study.data import stages
        from study.runner.devices import uses_gpu
        from study.search import all_rows

        if not dry and (config := load(words)).dataset.generator:
            uses_gpu(config.trainer.accelerator)  # a missing one is said before data are made
            for stage in (stages.fetch, stages.prepare, stages.split):
                stage(config)
        failed: list[str] = []
        if dry:
            jobs = all_rows.due(words, failed, every=replace, dry=True)
            echo("\n".join([*(job.name for job in jobs), all_rows.summary(jobs)]))
        else:
            failed = all_rows.run_all(words, launcher, replace=replace)
        return require_none(failed, "rows")
    from study.runner.cluster import run_seeds
    from study.runner.rows import run_row

    config = load_configuration(words, heeded, trains=True)
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

    echo(f"tables in {stage(load_configuration(overrides, ['dataset']))}; study show prints them")


@app.command(rich_help_panel=STUDY)
def show(overrides: Overrides = None) -> None:
    """Print a data set's results (all columns: tables/overall.md)."""
    from study.analysis.report.tables import overall_tables

    print_wide(*overall_tables(load_configuration(overrides, ["dataset"]).dataset.name))


@app.command(rich_help_panel=STUDY)
def tune(
    overrides: Overrides = None,
    replace: Annotated[bool, Option("--replace", help="Also where a search under another profile is there.")] = False,
    every: Annotated[bool, Option("--all", help="Every search of the data set that is missing or stale.")] = False,
) -> None:
    """Choose a system's hyper-parameters on validation tasks.

    `study tune dataset=task2mcp system=bpr_tuned` has 12 trials (`tuning.trials`) with 0.33 of a run's epochs each
    (`system.rungs`): the values of the system's yaml, then some of the space under `search`. With more shares, such as
    `rungs: [0.11, 0.33, 1.0]`, the best third and the system as it is go on to the next one.

    It writes `trials.csv`, `best.yaml` (which `study run` then takes) and `record.json` to
    `results/DATASET/tuned/SYSTEM`. The same command goes on after a stop, or with more trials: `tuning.trials=24`.
    """
    words = overrides or []
    if every:
        from study.search.all_rows import tune_all

        return require_none(tune_all(words), "searches")
    from study.search.tune import tune as stage

    config = load_configuration(words)
    if config.system.tuned and not any(word.startswith("protocol=") for word in words):
        config = load_configuration([*words, f"protocol={config.system.tuned}"])
    return _show_best(stage(config, replace=replace, again=replace))


@app.command(rich_help_panel=STUDY)
def sweep(
    name: Annotated[str, Argument(help="Of conf/sweep: fusion_weight, temperature, learning_rate, joint, your own.")],
    overrides: Overrides = None,
    values: Annotated[str | None, Option(help="Other values, for once: --values 0.05,0.07 --name NAME.")] = None,
    trials: Annotated[int | None, Option(min=1, help="Another number of trials of a search, for once.")] = None,
    new_name: Annotated[str | None, Option("--name", help="A name for other values, trials or settings.")] = None,
    jobs: Annotated[int, Option(min=1, help="Workers on this machine, each in a process of its own.")] = 1,
    replace: Annotated[bool, Option("--replace", help="Make a finished sweep again.")] = False,
    multirun: Multirun = False,
) -> None:
    """Vary a system's settings and measure every value.

    `study sweep temperature dataset=task2mcp --jobs 2`. `conf/sweep/NAME.yaml` names the system and values of its
    settings; a sweep of your own needs `name`, `title`, `system` and `space`. Other values, trials or settings need a
    name of their own: `study sweep temperature system.model.training.epochs=2 --name temperature_short`.

    After a stop, the same command goes on; when all trials are finished, it writes the tables again. One process
    measures all fusion weights, whatever `--jobs` says.
    """
    from study.search.sweep import describe_values, load_sweep, rename_sweep
    from study.search.sweep import sweep as stage

    if multirun:
        raise StudyError("a sweep has several values anyway", fix=f"study sweep {name} --values 0.05,0.07 --name NAME")
    words = overrides or []
    protocol = next((word.partition("=")[2] for word in words if word.startswith("protocol=")), None)
    chosen = rename_sweep(load_sweep(name), new_name, values=values, trials=trials, protocol=protocol)
    config = load_configuration([f"system={chosen.system}", f"protocol={chosen.protocol}", *words])
    folder = stage(chosen, config, jobs=jobs, replace=replace, again=replace)
    _show_best(folder)
    echo("\n".join(describe_values(folder, chosen)))
    if (folder.parent / "optima.csv").exists():  # what the notebook answers by
        echo(f"figure: notebooks/04_rq3_sensitivity.ipynb, with {chosen.name!r} in `sweeps` of its first cell")


def _show_best(folder: Path) -> None:
    """Say what a search chose, and where its tables are."""
    from study.base.settings import read_yaml

    best = read_yaml(folder / "best.yaml")
    values = ", ".join(f"{name}={value}" for name, value in best["values"].items())
    echo(f"best {best['objective']}: {best['value']:.4f} with {values} ({best['trials']} trials)")
    echo(f"sweep in {folder}")


@app.command(rich_help_panel=STUDY)
def verify(
    paper: Annotated[bool, Option("--paper", help="Every cell of the paper's tables beside ours.")] = False,
) -> None:
    """Compare expected scores with the runs; code 1 if one fails.

    Verdicts by results/expected.yaml: OK, OKish (within twice the tolerance), FAIL or MISSING; by --paper none fails.
    """
    if paper:
        from study.analysis.audit.verdicts import verify_paper

        return echo(verify_paper(load_configuration(["dataset=task2mcp"])))
    from study.analysis.report.expected import verify as stage

    verdicts, text = stage()
    echo(text)
    raise Exit(int("FAIL" in verdicts))


@app.command(rich_help_panel=STUDY)
def docs(check: Annotated[bool, Option("--check", help="Write nothing; fail where a page is old.")] = False) -> None:
    """Write README and docs from docs/src, numbers from their tables."""
    from study.analysis.report.pages import render, stale
    from study.base import paths
    from study.base.files import write_text

    pages = render()
    for path in (old := stale(pages)):
        if not check:
            write_text(path, pages[path])
        echo(f"{path.relative_to(paths.root())} {'is not what docs/src gives' if check else 'written'}")
    echo(f"{len(pages) - len(old)} of {len(pages)} pages are as they should be")
    raise Exit(int(check and bool(old)))


@app.command(rich_help_panel=ANALYSES)
def analyse(
    words: Annotated[list[str] | None, Argument(metavar="[GROUP[/NAME]]... [KEY=VALUE]...")] = None,
    every: Annotated[bool, Option("--list", help="Print all analyses with their questions instead.")] = False,
) -> None:
    """Make the tables of the analyses, by group or name.

    `study analyse audit usefulness/steps dataset=task2mcp`. A group (default: all) runs its analyses but the slow ones,
    which are run by name and go on after a stop.
    """
    from study.analysis.framework import all_analyses, run_analyses

    if every:
        for name, entry in all_analyses().items():
            echo(f"{name}{' (slow)' if entry.slow else ''}: {entry.question}")
        return
    config = load_configuration([word for word in words or [] if "=" in word], ["dataset"])
    for path in run_analyses([word for word in words or [] if "=" not in word], config):
        echo(path)


@app.command(rich_help_panel=ANALYSES)
def notebooks(
    overrides: Overrides = None,
    only: Annotated[list[str] | None, Option(help="Just this one, such as 08_useful; may be repeated.")] = None,
    changed: Annotated[bool, Option("--changed", help="Just those of which something has changed.")] = False,
) -> None:
    """Execute a data set's notebooks into results/DATASET/notebooks."""
    from study.analysis.notebooks import execute_all

    for path in execute_all(load_configuration(overrides, ["dataset"]).dataset.name, only or (), changed=changed):
        echo(path)


@app.command(rich_help_panel=ANALYSES)
def authors(
    action: Annotated[Literal["prepare", "run"], Argument(help="Convert the release for the program, or run it too.")],
    overrides: Overrides = None,
) -> None:
    """Run the authors' own program, or convert the data for it.

    `prepare` writes the three files that it reads below data/authors/DATASET. `run` also fetches the program at its
    pinned commit, checks its SHA-256, runs it in a process of its own (an hour or more), and compares its top tens with
    those of results/DATASET/authors/top10.csv.
    """
    from study.runner import authors_program as program

    config = load_configuration(overrides)
    echo(program.prepare(config).to_string(index=False))
    if action == "run":
        folder = program.run(config)
        for path in (folder / "agreement.csv", folder / "metrics.csv"):
            echo(f"\n{path}\n{path.read_text(encoding='utf-8')}")


@app.command(rich_help_panel=OWN)
def new(name: Name) -> None:
    """Write class and yaml of a system of your own, which runs."""
    from study.runner.own_system import new_system

    echo("\n".join(map(str, new_system(name))))
    echo(f"edit both, then: study check {name}; study run system={name} dataset=task2mcp")


@app.command(rich_help_panel=OWN)
def check(name: Name) -> None:
    """Examine a system on toys, in seconds.

    Yaml, shapes, NaN, leaks, determinism, resuming, and what it learns. A model of RecBole takes minutes.
    """
    from study.config.compose import load
    from study.runner.own_system import examine
    from study.search.tune import first_point

    for line in examine(name):
        echo(line)
    if (system := load([f"system={name}"]).system).search:
        first_point(load([f"system={name}", *([f"protocol={system.tuned}"] if system.tuned else [])]))
        echo("search space: holds the present values")


@app.command(rich_help_panel=OWN)
def remove(
    name: Name,
    overrides: Annotated[list[str] | None, Argument(hidden=True)] = None,
    yes: Annotated[bool, Option("--yes", help="Remove what is listed.")] = False,
) -> None:
    """List all that there is of a system or a sweep, or remove it."""
    from study.runner.own_system import remove_system

    if overrides:
        raise StudyError("a system or a sweep is removed from every data set", fix=f"study remove {name}")
    echo("\n".join(remove_system(name, really=yes)))
    happens = "removed; study report makes the tables without it"
    echo(happens if yes else f"to remove it: study remove {name} --yes")


@app.command(rich_help_panel=UPKEEP)
def reference(
    systems: Annotated[list[str] | None, Argument(help="Only these; `evaluator` is ranking and metrics.")] = None,
    update: Annotated[bool, Option("--update", help="Store the new scores and raise the versions.")] = False,
) -> None:
    """Compare scores on toys with those of tests/reference, in minutes.

    A change of scores makes the rows of a system stale once `--update` has raised its version.
    """
    from study.runner import reference as stored

    checked = stored.check(systems)
    differing = [name for name, result in checked.items() if result.difference]
    for name in differing:
        echo(f"{name}: {checked[name].difference}")
    if update:
        for name, version in stored.update(checked).items():
            echo(f"{name}: version {version}")
    elif differing:
        fix = f"undo the change, or: study reference --update {' '.join(differing)}; their rows are then stale"
        raise StudyError(f"{len(differing)} differ from their reference scores", file=stored.scores_file(), fix=fix)


@app.command(rich_help_panel=UPKEEP)
def export(
    overrides: Overrides = None,
    form: Annotated[
        Literal["model", "trec", "recbole", "croissant"],
        Option(help="model: for `study recommend`; trec: run files; recbole: atomic files; croissant: tables."),
    ] = "model",
) -> None:
    """Save a system for `study recommend`, or write other forms.

    `--form model`: T2MRec, trained once under `cold`, or `system=field_dense`. `trec` (the runs of the protocol, of all
    systems or of `system=...`) and `recbole` (all splits) go to `data/export`; `croissant` describes result tables.
    """
    from study.base import paths

    config, folder = load_configuration(overrides), paths.root() / "data" / "export"
    if form == "model":
        from study.search.export import export as stage

        return echo(f"model in {stage(config)}")
    if form == "croissant":
        from study.judging.croissant import export_croissant

        name = config.dataset.name
        return echo(f"description in {export_croissant(name, paths.results(name))}")
    from study.runner import exchange

    if form == "trec":
        systems = [word.partition("=")[2] for word in overrides or [] if word.startswith("system=")]
        written = exchange.export_runs(config, folder / config.dataset.name / config.protocol.name, systems)
    else:
        written = exchange.export_splits(config, folder)
    return echo(f"{len(written)} files in {folder}")


@app.command(rich_help_panel=UPKEEP)
def doctor(overrides: Overrides = None) -> None:
    """Say what this machine lacks for the study, with each fix."""
    from rich.table import Table

    from study.runner.doctor import FAULT, OK, examine

    table = Table("what", "state", "is", "fix")
    checks = list(examine(load_configuration(overrides, ["dataset"]).dataset.name))
    for each in checks:
        table.add_row(*each[:3], "" if each.state == OK else each.fix)
    print_wide(table)
    if faults := [each.what for each in checks if each.state == FAULT]:
        raise StudyError(f"faults: {', '.join(faults)}", fix="see the table")


@app.command(rich_help_panel=UPKEEP)
def bench(overrides: Overrides = None) -> None:
    """Measure training, evaluation, one answer (efficiency.csv)."""
    from study.analysis.overall.bench import bench as stage

    echo(stage(load_configuration(overrides, trains=True)))
