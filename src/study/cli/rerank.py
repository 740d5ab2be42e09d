"""The `study rerank` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Re-ranking: attack the systems with a hostile catalogue.")


@app.callback()
def rerank() -> None:
    """Re-ranking and its safety."""


@app.command()
def stuffing(
    dataset: Annotated[str, typer.Option("--dataset", help="Whose catalogue.")] = "synthetic",
    profile: Annotated[str, typer.Option("--profile", help="How much training: smoke, laptop, full.")] = "laptop",
) -> None:
    """Measure how far keyword stuffing carries a server in each system of conf/reranking/stuffing.yaml.

    The same command goes on after a stop.
    """
    import pandas as pd

    from study.analysis.report.plots import save_figure
    from study.analysis.usefulness.stuffing import measure
    from study.analysis.usefulness.stuffing_figures import keyword_stuffing
    from study.config.registry import all_system_settings

    place = measure(dataset, profile)
    table = pd.read_csv(place)
    titles = {name: str(system.title) for name, system in all_system_settings().items()}
    caption = f"Data: {dataset}. Profile: {profile}."
    picture = save_figure(keyword_stuffing(table, titles, caption), "keyword_stuffing", dataset)
    typer.echo(table.to_string(index=False, float_format="{:.3f}".format))
    typer.echo(f"table in {place}, figure in {picture}")
