"""``conf/llm/<name>.yaml``: which endpoint a language model is asked at."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from study.advisor.llm import client as llm
from study.advisor.llm.weights import OWN, LocalModels, model_path
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import build_settings, read_keys
from study.base.stand_in import StandIn

# Environment variables that stand in for the keys of the same name, so that recording changes no file.
OVERRIDES = {"mode": "T2M_LLM_MODE", "base_url": "T2M_LLM_URL"}
# For the clients that `Endpoint.client` makes: another class, of whose replies nothing is recorded.
CLIENT = StandIn[type[llm.Client]]()
MODEL = "T2M_LLM_MODEL"  # environment variable: the model's name at an endpoint of one's own


@dataclass(frozen=True)
class Endpoint:
    """How an endpoint is asked; no value of it changes what is asked. Keys as in ``conf/llm``."""

    base_url: str
    mode: llm.Mode
    key_variable: str
    timeout: NonNegativeFloat
    retries: NonNegativeInt
    pause: NonNegativeFloat
    longest_pause: NonNegativeFloat
    concurrency: PositiveInt
    max_bytes: PositiveInt

    def client(self, cassette: Path | None) -> llm.Client:
        """A client that keeps replies in `cassette`; None is for the mode ``off``."""
        return (CLIENT() or llm.Client)(cassette=cassette, **asdict(self))


def endpoint_settings(name: str) -> Endpoint:
    """Read ``conf/llm/<name>.yaml`` strictly, with mode and address from the environment where it names them."""
    file = paths.conf() / "llm" / f"{name}.yaml"
    values = read_keys(file, [field.name for field in fields(Endpoint)], fix="name a file of conf/llm")
    named = {key: os.environ[variable] for key, variable in OVERRIDES.items() if os.environ.get(variable)}
    named |= {"mode": "off"} if CLIENT() else {}
    return build_settings(Endpoint, values | named, file)


def connect(address: str = "", model: str = "", cassette: Path | None = None) -> tuple[llm.Client, str]:
    """A client, asked as ``conf/llm/local.yaml`` says, and the model's name there (without meaning for a local one).

    `address`: ``local:NAME``, or of an endpoint with OpenAI's interface; otherwise the one of that file or of
    T2M_LLM_URL. Where nobody chose a model, and the file's was not fetched but another one was, that one. `model`:
    otherwise T2M_LLM_MODEL. `cassette`: keeps replies. Raises StudyError: an endpoint's model without a name.
    """
    settings, model = endpoint_settings("local"), model or os.environ.get(MODEL, "")
    if not address:
        address = settings.base_url
        if address.startswith(llm.LOCAL) and not {OWN, OVERRIDES["base_url"]} & os.environ.keys():
            names = (address.removeprefix(llm.LOCAL), *LocalModels.read().models)
            address = next((llm.LOCAL + name for name in names if model_path(name).is_file()), address)
    if not model and not address.startswith(llm.LOCAL):
        fix = f"set {MODEL}, or --model NAME of the agent"
        raise StudyError("the endpoint's model has no name", file=address, fix=fix)
    asked = replace(settings, base_url=address, mode="off" if cassette is None else "record")
    return asked.client(cassette), model or address.removeprefix(llm.LOCAL)
