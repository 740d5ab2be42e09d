"""`study tune` and `study sweep`. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from study.base.errors import StudyError
from study.cli.overrides import Overrides, Replace, configured


def tune(
    overrides: Overrides = None,
    replace: Replace = False,
    every: Annotated[
        bool, typer.Option("--all", help="Every tuned system of the data set whose search is missing or stale.")
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

        if failed := tune_all(words):
            raise StudyError(f"{len(failed)} searches failed: {'; '.join(failed)}", fix="run the same command again")
        return
    from study.search.tune import tune as stage

    config = configured(words)
    if config.system.tuned and not any(word.startswith("protocol=") for word in words):
        config = configured([*words, f"protocol={config.system.tuned}"])
    _show_best(stage(config, replace=replace, again=replace))


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
    jobs: Annotated[int, typer.Option(min=1, help="Workers on this machine, each in a process of its own.")] = 1,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Make a finished sweep again, also one that was made under another profile."),
    ] = False,
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

    words = overrides or []
    protocol = next((word.partition("=")[2] for word in words if word.startswith("protocol=")), None)
    wanted = renamed(load_sweep(name), own, values=values, trials=trials, protocol=protocol)
    config = configured([f"system={wanted.system}", f"protocol={wanted.protocol}", *words])
    folder = stage(wanted, config, jobs=jobs, replace=replace)
    _show_best(folder)
    for line in standing(folder, wanted):
        typer.echo(line)
    typer.echo(f"figure: notebooks/04_rq3_sensitivity.ipynb, with {wanted.name!r} in `sweeps` of its first cell")


def _show_best(folder: Path) -> None:
    """Say what a search chose, and where its tables are."""
    from study.base.settings import read_yaml

    best = read_yaml(folder / "best.yaml")
    values = ", ".join(f"{name}={value}" for name, value in best["values"].items())
    typer.echo(f"best {best['objective']}: {best['value']:.4f} with {values} ({best['trials']} trials)")
    typer.echo(f"sweep in {folder}")
