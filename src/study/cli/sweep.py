"""`study sweep`: vary settings."""

from __future__ import annotations

from typing import Annotated

import typer


def sweep(
    name: Annotated[
        str, typer.Argument(help="A sweep of conf/sweep: fusion_weight, temperature, learning_rate, joint.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Workers on this machine, each in a process of its own.")] = 1,
    storage: Annotated[
        str | None, typer.Option(help="Database of the trials, for workers on several machines (docs/scaling.md).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace results made under another profile.")] = False,
) -> None:
    """Vary settings of T2MRec and measure every value: `study sweep temperature dataset=task2mcp --jobs 2`.

    All workers of a sweep share its trials. After a stop, the same command goes on. Once all trials are finished, it
    writes the tables again without training. One process measures all fusion weights, so they need no workers.
    """
    from study.config.compose import load
    from study.search.settings import load as load_sweep
    from study.search.sweep import sweep as stage

    wanted = load_sweep(name)
    config = load([f"system={wanted.system}", *(overrides or [])])
    typer.echo(f"sweep in {stage(name, config, jobs=jobs, storage=storage, replace=replace)}")
