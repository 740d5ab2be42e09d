"""The `study tools intent` commands: recommend, record what came of it, look at the metrics, compare, learn weights."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from study.errors import StudyError

app = typer.Typer(no_args_is_help=True, help="Intent-based ranking: recommend, record, metrics, compare, tune.")
Catalogue = Annotated[str, typer.Option(help="An indexed catalogue (study tools index).")]
Experiment = Annotated[str | None, typer.Option(help="Name of a running comparison of the configured variants.")]
Names = Annotated[list[str] | None, typer.Option(help="May be given several times.")]


def store_file(catalogue: str) -> Path:
    """Where the feedback about a catalogue is kept (never committed)."""
    from study.cli.tools import place

    return place(catalogue).with_suffix(".feedback.jsonl")


@app.command()
def recommend(
    query: Annotated[str, typer.Argument(help="What is to be done, in words.")],
    catalogue: Catalogue = "livemcpbench",
    agent: Annotated[str, typer.Option(help="Who asks.")] = "",
    k: Annotated[int, typer.Option("-k", "--top", min=1, help="How many tools.")] = 5,
    language: Names = None,
    system: Names = None,
    needs: Annotated[
        Path | None, typer.Option(help='JSON: tool key -> {"permissions": [], "services": [], "languages": []}.')
    ] = None,
    permission: Names = None,
    service: Names = None,
    experiment: Experiment = None,
    as_designed: Annotated[bool, typer.Option(help="Keep the defects of the design document.")] = False,
) -> None:
    """Name tools with the parts of their scores, and the event to give back: `study tools intent record`."""
    from study.cli.tools import place
    from study.tools.answers import printable
    from study.tools.catalogues import catalog as catalogs
    from study.tools.intent import feedback, settings
    from study.tools.intent.context import Context, read_requirements
    from study.tools.intent.recommender import IntentRecommender

    stated = [None if names is None else frozenset(names) for names in (permission, service, language, system)]
    made = IntentRecommender(
        catalogs.load(place(catalogue)),
        store=feedback.FeedbackStore(store_file(catalogue)),
        experiment=experiment,
        requirements=read_requirements(needs) if needs else None,
        rules=settings.as_designed() if as_designed else settings.CORRECTED,
    )
    found = made.recommend(query, Context(agent, *stated), k)
    for rank, item in enumerate(found, start=1):
        typer.echo(printable(f"{rank:>2}  {item.score:.3f}  {item.key}  ({item.why})"))
    asked = {"agent": agent, "query": feedback.query_hash(query), "asked": time.time(), "experiment": experiment}
    shown = [item.key for item in found]
    table = [list(item.factors.values()) for item in found]
    typer.echo(json.dumps(asked | {"shown": shown, "factors": table}), err=True)


@app.command()
def record(
    event: Annotated[str, typer.Argument(help="What `recommend` wrote to the error stream, as JSON.")],
    selected: Annotated[str | None, typer.Option(help="Key of the tool that was used; leave out for none.")] = None,
    success: Annotated[bool | None, typer.Option("--success/--failure", help="Whether it worked.")] = None,
    latency_ms: Annotated[float | None, typer.Option(min=0, help="Milliseconds that the tool took.")] = None,
    rating: Annotated[float | None, typer.Option(min=0, help="From 0 to 5.")] = None,
    catalogue: Catalogue = "livemcpbench",
) -> None:
    """Record what came of a recommendation."""
    from study.tools.intent import feedback, settings

    scale = settings.load().ranking.rating_scale
    store = feedback.FeedbackStore(store_file(catalogue), rating_scale=scale)
    outcome = {"selected": selected, "success": success, "latency_ms": latency_ms, "rating": rating}
    try:
        told = json.loads(event)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"the event is not JSON ({error})", fix="paste what `recommend` printed last") from error
    if not isinstance(told, dict):
        raise StudyError("the event is not an object", fix="paste what `recommend` printed last")
    store.append(store.event(told | {"finished": time.time()} | outcome, "the event"))


@app.command()
def metrics(catalogue: Catalogue = "livemcpbench") -> None:
    """Click-through rate, success rate, time to success and satisfaction of the recorded feedback."""
    import pandas as pd

    from study.tools.intent import feedback, online

    events = feedback.FeedbackStore(store_file(catalogue)).events()
    typer.echo(pd.DataFrame(online.metrics(events)).to_string(index=False, float_format="{:.3f}".format))


@app.command()
def compare(
    experiment: Annotated[str, typer.Argument(help="Name of the comparison.")], catalogue: Catalogue = "livemcpbench"
) -> None:
    """Every variant against the control; may be looked at after every use without raising the error rate."""
    import pandas as pd

    from study.tools.intent import comparison, feedback, settings

    chosen = settings.load()
    events = feedback.FeedbackStore(store_file(catalogue)).events()
    observed = comparison.outcomes(events, list(chosen.variants), experiment, chosen.comparison.uses_per_agent)
    verdicts = comparison.compare(observed, chosen.comparison)
    typer.echo(pd.DataFrame(verdicts).to_string(index=False, float_format="{:.3f}".format))


@app.command()
def tune(catalogue: Catalogue = "livemcpbench") -> None:
    """Weights learned from the recorded feedback, to be written into conf/tools/intent.yaml as a variant."""
    from study.tools.intent import comparison, feedback, settings, tuning

    chosen = settings.load()
    told = tuning.lessons(feedback.FeedbackStore(store_file(catalogue)).events())
    weights = tuning.tune(told, chosen.variants[comparison.CONTROL], chosen.tuning)
    count = sum(bool(len(own)) for own in told)
    typer.echo(f"{count} successful uses tell something")
    if count < tuning.FEW:
        typer.echo(f"fewer than {tuning.FEW}: these weights fit single uses, do not use them", err=True)
    typer.echo(json.dumps({name: round(value, 4) for name, value in tuning.named(weights).items()}))
