"""`study tune` and `study sweep`. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from study.cli.overrides import Overrides, Replace, configured
from study.errors import StudyError

if TYPE_CHECKING:
    import pandas as pd


def tune(
    overrides: Overrides = None,
    replace: Replace = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every tuned system of the data set whose search is missing or stale.")
    ] = False,
) -> None:
    """Choose a system's hyper-parameters on validation: `study tune dataset=task2mcp system=bpr_tuned`.

    A search has 12 trials (`tuning.trials`) with 0.33 of a run's epochs each (`system.rungs`); the first has the values
    of the system's yaml, the others are drawn from the search space under `search`. Trials are scored on the validation
    part of the protocol under `tuned` in the system's yaml, or of the one given as `protocol=...`. With more shares,
    such as `rungs: [0.11, 0.33, 1.0]`, the best third and the system as it is go on to the next one.

    It writes `trials.csv`, `best.yaml` (the values that `study run` then takes) and `record.json` to
    `results/DATASET/tuned/SYSTEM`. A stopped search goes on with the same command, a finished one with more trials:
    `tuning.trials=24`.
    """
    if every:
        from study.search.all_rows import tune_all

        if failed := tune_all(overrides or []):
            raise StudyError(f"{len(failed)} searches failed: {'; '.join(failed)}", fix="run the same command again")
        return
    from study.search.tune import tune as stage

    config, words = configured(overrides), overrides or []
    if config.system.tuned and not any(word.startswith("protocol=") for word in words):
        config = configured([*words, f"protocol={config.system.tuned}"])
    _show_best(stage(config, replace=replace, again=replace))


def _show_best(folder: Path) -> None:
    """Say what a search chose, and where its tables are."""
    import yaml

    best = yaml.safe_load((folder / "best.yaml").read_text(encoding="utf-8"))
    values = ", ".join(f"{name}={value}" for name, value in best["values"].items())
    typer.echo(f"best {best['objective']}: {best['value']:.4f} with {values} ({best['trials']} trials)")
    typer.echo(f"sweep in {folder}")


def sweep(
    name: Annotated[
        str, typer.Argument(help="A sweep of conf/sweep: fusion_weight, temperature, learning_rate, joint, your own.")
    ],
    overrides: Overrides = None,
    values: Annotated[str | None, typer.Option(help="Other values, for once: --values 0.05,0.07 --name NAME.")] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Another number of trials of a search, for once.")] = None,
    own: Annotated[
        str | None, typer.Option("--name", help="The name of a sweep with other values, trials or settings.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Workers on this machine, each in a process of its own.")] = 1,
    storage: Annotated[
        str | None, typer.Option(help="Database of the trials, for workers on several machines (docs/scaling.md).")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Make a finished sweep again, also one that was made under another profile."),
    ] = False,
) -> None:
    """Vary settings of a system and measure every value: `study sweep temperature dataset=task2mcp --jobs 2`.

    `conf/sweep/NAME.yaml` names the system and the values of one or more of its settings; a sweep of your own needs
    `name`, `title`, `system` and `space`. Other values, trials or settings of the system need a name of their own:
    `study sweep temperature system.model.training.epochs=2 --name temperature_short`.

    All workers of a sweep share its trials. After a stop, the same command goes on. Once all trials are finished, it
    writes the tables again without training. One process measures all fusion weights, so they need no workers.
    """
    from study.search.settings import load_sweep, renamed
    from study.search.sweep import standing
    from study.search.sweep import sweep as stage

    words = overrides or []
    protocol = next((word.partition("=")[2] for word in words if word.startswith("protocol=")), None)
    wanted = renamed(load_sweep(name), own, values=values, trials=trials, protocol=protocol)
    config = configured([f"system={wanted.system}", f"protocol={wanted.protocol}", *words])
    folder = stage(wanted, config, jobs=jobs, storage=storage, replace=replace)
    _show_best(folder)
    _show_standing(standing(folder), list(wanted.space), wanted.paper_best)
    single = (folder / "comparisons.csv").exists()
    typer.echo("limits: 95 %, over validation tasks" if single else "limits: one standard deviation over seeds")
    dataset = config.dataset.name
    typer.echo(f"figure: figures/{dataset}/sweep_{wanted.name}.png, drawn by study notebooks dataset={dataset}")


def _show_standing(table: pd.DataFrame, names: list[str], paper: float | None) -> None:
    """Say the best value's interval, the paper's value beside it, and what the test does not tell from the best."""

    def shown(row: dict[Any, Any]) -> str:
        known = row["ci_low"] == row["ci_low"]  # NaN for one seed
        limits = f"{row['ci_low']:.4f}, {row['ci_high']:.4f}" if known else "one seed, no interval"
        return f"{', '.join(str(row[name]) for name in names)}: {row['mean']:.4f} [{limits}]"

    rows = table.to_dict("records")
    typer.echo(f"best {shown(rows[0])}")
    for row in rows if paper is not None and len(names) == 1 else ():
        if row[names[0]] == paper:
            typer.echo(f"the paper's {shown(row)}")
    same = [", ".join(str(row[name]) for name in names) for row in rows[1:] if row["same"]]
    typer.echo(f"cannot be told from the best: {'; '.join(same) or 'none'}")
