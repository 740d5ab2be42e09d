"""`study sweep`, `study ablation`, `study embedding`: vary settings, and what RQ2 is read from."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]


def sweep(
    name: Annotated[
        str, typer.Argument(help="A sweep of conf/sweep: fusion_weight, temperature, learning_rate, joint.")
    ],
    overrides: Overrides = None,
    jobs: Annotated[int, typer.Option(help="Workers on this machine, each in a process of its own.")] = 1,
    storage: Annotated[
        str | None, typer.Option(help="Address of a database for the trials instead of a file (docs/scaling.md).")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace results made under another profile.")] = False,
) -> None:
    """Vary settings of T2MRec and measure every value: `study sweep temperature dataset=task2mcp --jobs 2`.

    Trials are shared by all workers of the same sweep, on this machine or on others with the same folder. The same
    command goes on after a stop; once all trials are finished, it writes the tables again without training. The fusion
    weight needs no workers: one process measures all its values.
    """
    from study.config.compose import load
    from study.search.settings import load as load_sweep
    from study.search.sweep import sweep as stage

    wanted = load_sweep(name)
    config = load([f"system={wanted.system}", *(overrides or [])])
    typer.echo(f"sweep in {stage(name, config, jobs=jobs, storage=storage, replace=replace)}")
