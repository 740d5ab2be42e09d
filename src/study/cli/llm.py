"""`study llm`: small language models on this machine's processor. Heavy imports stay inside the commands."""

from __future__ import annotations

import signal
from typing import Annotated

from typer import Option, Typer, echo

from study.base.errors import StudyError, require_one_of

app = Typer(no_args_is_help=True, help="Fetch and serve small language models on this machine.")


@app.command()
def fetch(
    model: Annotated[str | None, Option(help="qwen, smollm, or the encoders minilm, mpnet.")] = None,
    url: Annotated[str | None, Option(help="Address of a GGUF file instead; needs --sha256.")] = None,
    sha256: Annotated[str | None, Option(help="The SHA-256 that the file of --url must have.")] = None,
) -> None:
    """Download a model and check its hash: `study llm fetch --model smollm`. After a stop, the same command goes on."""
    from study.advisor.encoders import fetched
    from study.advisor.llm.weights import OWN, LocalModels, fetch_model, fetch_url

    if (url is None) != (sha256 is None):
        raise StudyError("an address needs a hash and a hash an address", fix="give both --url and --sha256, or none")
    if url is not None and sha256 is not None:
        echo(f"model in {(path := fetch_url(url, sha256))}; use it with {OWN}={path}")
        return
    models = LocalModels.read()
    name = model or models.default
    require_one_of(name, "model", [*models.models, *fetched.NAMES], column="--model")
    encoder = name in fetched.NAMES
    stated = fetched.described(name) if encoder else models[name]
    echo(f"{stated.title} ({stated.licence}) in {fetched.fetch(name) if encoder else fetch_model(name)}")


@app.command()
def serve(
    model: Annotated[str | None, Option(help="qwen or smollm (default: conf/llm/models.yaml).")] = None,
    port: Annotated[int, Option(min=0, max=65535, help="Port of 127.0.0.1; 0 takes a free one.")] = 0,
) -> None:
    """Serve a model with OpenAI's interface, on this machine alone; Ctrl-C stops it."""
    from study.advisor.llm.local import local_model
    from study.advisor.llm.weights import LocalModels

    for stop in (signal.SIGINT, signal.SIGTERM):  # a shell starts programs in the background with SIGINT ignored
        signal.signal(stop, signal.default_int_handler)
    try:
        with local_model(model or LocalModels.read().default, port=port) as served:
            echo(f"{served.url} serves {served.alias}; Ctrl-C stops it")
            served.child.wait()
            raise StudyError(str(served.stopped()), fix="start it again")
    except KeyboardInterrupt:
        echo("stopped")


@app.command()
def agent(dataset: Annotated[str, Option(help="Whose servers.")] = "task2mcp") -> None:
    """What a model does for the agent: it reads and words the requests of conf/agent/model_trial.yaml (an hour)."""
    import pandas as pd

    from study.tools.model_trial import measure

    table = pd.read_csv(measure(dataset))
    echo(table.mean(numeric_only=True).round(3).to_string())
