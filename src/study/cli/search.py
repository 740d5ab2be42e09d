"""`study tune` and `study sweep`. Heavy imports stay inside the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from study.cli.overrides import Overrides, Replace, configured


def tune(overrides: Overrides = None, replace: Replace = False) -> None:
    """Choose a system's hyper-parameters on validation: `study tune dataset=task2mcp system=bpr_tuned`.

    A search has 12 trials (`tuning.trials`) with 0.33 of a run's epochs each (`system.rungs`); the first has the values
    of the system's yaml, the others are drawn from the search space under `search`. Trials are scored on the validation
    part of the protocol under `tuned` in the system's yaml, or of the one given as `protocol=...`. With more shares,
    such as `rungs: [0.11, 0.33, 1.0]`, the best third and the system as it is go on to the next one.

    It writes `trials.csv`, `best.yaml` (the values that `study run` then takes) and `record.json` to
    `results/DATASET/sweeps/SYSTEM`. A stopped search goes on with the same command, a finished one with more trials:
    `tuning.trials=24`.
    """
    from study.search.tune import tune as stage

    config, words = configured(overrides), overrides or []
    if config.system.tuned and not any(word.startswith("protocol=") for word in words):
        config = configured([*words, f"protocol={config.system.tuned}"])
    _show_best(stage(config, replace=replace))


def _show_best(folder: Path) -> None:
    """Say what a search chose, and where its tables are."""
    import yaml

    best = yaml.safe_load((folder / "best.yaml").read_text(encoding="utf-8"))
    values = ", ".join(f"{name}={value}" for name, value in best["values"].items())
    typer.echo(f"best {best['objective']}: {best['value']:.4f} with {values} ({best['trials']} trials)")
    typer.echo(f"sweep in {folder}")


def sweep(
    name: Annotated[
        str, typer.Argument(help="A sweep of conf/sweep: fusion_weight, temperature, learning_rate, joint.")
    ],
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option(help="Workers on this machine, each in a process of its own.")] = 1,
    storage: Annotated[
        str | None, typer.Option(help="Database of the trials, for workers on several machines (docs/scaling.md).")
    ] = None,
    replace: Replace = False,
) -> None:
    """Vary settings of T2MRec and measure every value: `study sweep temperature dataset=task2mcp --jobs 2`.

    All workers of a sweep share its trials. After a stop, the same command goes on. Once all trials are finished, it
    writes the tables again without training. One process measures all fusion weights, so they need no workers.
    """
    from study.search.settings import load_sweep
    from study.search.sweep import sweep as stage

    wanted = load_sweep(name)
    config = configured([f"system={wanted.system}", *(overrides or [])])
    _show_best(stage(name, config, jobs=jobs, storage=storage, replace=replace))
    dataset = config.dataset.name
    draw = f"study notebooks dataset={dataset} --only 04_rq3_sensitivity"
    typer.echo(f"figure: figures/{dataset}/sweep_{name}.png, drawn by {draw}")
