"""The `study useful` commands. Heavy imports stay inside the commands."""

from __future__ import annotations

import typer

from study.cli.best import DATASET, save, settings

app = typer.Typer(
    no_args_is_help=True,
    help="What `best` is worth beyond its mean score: calibration, diversity, steps, latency, pareto, curves, "
    "label-steps. Tables and records in results/task2mcp/best.",
)


@app.command()
def calibration() -> None:
    """Fit the chance that the first answer is useful on validation topics; measure it on test topics."""
    from study.analysis.usefulness import confidence

    keys = {"system", "signals", "methods", "target", "bins", "resamples", "seed"}
    chosen = settings("calibration", keys)
    asked = confidence.confidence(DATASET, chosen["system"])
    save("confidence", asked, system=chosen["system"])
    for name, frame in confidence.tables(asked, chosen).items():
        save(name, frame, settings=chosen)


@app.command()
def diversity() -> None:
    """Compare the ten answers of every system on test topics: likeness, near duplicates, coverage, cold servers."""
    from study.analysis.usefulness import diversity as spread

    chosen = settings("diversity", {"reference", "near_duplicate", "seed"})
    found = spread.tables(DATASET, reference=chosen["reference"], near=chosen["near_duplicate"], seed=chosen["seed"])
    for name, frame in found.items():
        save(name, frame, settings=chosen)


@app.command()
def steps() -> None:
    """Add one idea at a time up to `best`, and teach T2MRec's architecture by something else than the labels."""
    import pandas as pd

    from study.analysis.usefulness import steps as ideas

    chosen = settings("steps", {"steps", "metrics", "supervision", "seed"})
    values = {part: ideas.judged(DATASET, part) for part in ("valid", "test")}
    frames = [
        ideas.one_at_a_time(own, chosen["steps"], chosen["metrics"], seed=chosen["seed"]).assign(part=part)
        for part, own in values.items()
    ]
    save("steps", pd.concat(frames, ignore_index=True), settings=chosen)
    save("supervision", ideas.supervision(values, **chosen["supervision"], seed=chosen["seed"]), settings=chosen)


@app.command()
def latency() -> None:
    """Time single requests of the systems of conf/best/latency.yaml, one after another, on one thread."""
    from study.analysis.usefulness import latency as timing
    from study.judging.topics import load_split

    chosen = settings("latency", {"requests", "warm_up", "systems", "saved"})
    save("latency", timing.table(*load_split(DATASET), chosen), settings=chosen, threads=1)


@app.command()
def pareto() -> None:
    """Put quality under both scorings beside training seconds and latency."""
    from study.analysis.usefulness import pareto as costs

    save("pareto", costs.table(DATASET))


@app.command()
def curves() -> None:
    """Fit the labels from fewer training tasks (minutes; resumes where it was stopped)."""
    from study.analysis.usefulness import curves as learning

    chosen = settings("curves", {"protocol", "systems", "shares", "draws", "seed"})
    save("curves", learning.table(DATASET, chosen), settings=chosen)


@app.command()
def label_steps() -> None:
    """Add one idea at a time up to `label_fit`, on validation tasks (minutes; resumes where it was stopped)."""
    from study.analysis.usefulness import label_steps as ideas

    chosen = settings("label_fit", {"protocol", "system", "seed", "steps"})
    save("label_steps", ideas.one_at_a_time(ideas.fits(DATASET, chosen), seed=chosen["seed"]), settings=chosen)
