"""What is known of a server that bears on trust, each with its source, and what a scan of its texts flags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from study.advisor.catalog import checks
from study.advisor.catalog.merge import ways
from study.base import paths
from study.base.errors import StudyError
from study.base.settings import read_settings


@dataclass(frozen=True)
class _Rules:
    rules: Mapping[str, str]


@cache
def _compiled(file: Path) -> dict[str, re.Pattern[str]]:
    """The rules of a file; StudyError for one that is no regular expression."""
    patterns = {}
    for name, pattern in read_settings(_Rules, file).rules.items():
        try:
            patterns[name] = re.compile(pattern, re.IGNORECASE | re.VERBOSE)
        except re.error as error:
            raise StudyError(f"no regular expression ({error})", file=file, column=name, fix="correct it") from error
    return patterns


def flags(server: Mapping[Any, Any]) -> list[str]:
    """The rules that a server's description or tools match, each with the place: ``secrets in tool read_file``."""
    texts = {"description": server["name"] + "\n" + server["description"]}
    texts |= {f"tool {tool['name']}": tool["name"] + "\n" + tool["description"] for tool in json.loads(server["tools"])}
    rules = _compiled(paths.conf() / "catalog" / "rules.yaml").items()
    return [f"{name} in {field}" for field, text in texts.items() for name, rule in rules if rule.search(text)]


def sources_of(server: Mapping[Any, Any], what: str) -> list[str]:
    """The sources that vouch for a way to start a server (``vouched``), or that tried one in vain (``failed``)."""
    return sorted({source for way in ways(server) for source in way[what]})


def trust(server: Mapping[Any, Any]) -> dict[str, Any]:
    """What bears on trust in a server (a row of `merge.COLUMNS`).

    Returns: `licence`, `stars`, `updated`, `official`, `status` (value and source, or None), `vouched` and `failed`
    (see `sources_of`), `text_changed` (when description or tools last changed), `notes`, `flags`, `repository`,
    `checks` (by package or address what was found out here, `checks.Check`).
    """
    provenance = json.loads(server["provenance"])

    def sourced(name: str, absent: object) -> dict[str, Any] | None:
        value = server[name]
        plain = {"stars": int, "official": bool}.get(name, str)(value)
        return None if value == absent else {"value": plain, "source": provenance.get(name, "")}

    return {
        "licence": sourced("licence", ""),
        "stars": sourced("stars", -1),
        "updated": sourced("updated", ""),
        "official": sourced("official", False),
        "status": sourced("status", "active"),
        "vouched": sources_of(server, "vouched"),
        "failed": sources_of(server, "failed"),
        "text_changed": server["text_changed"],
        "notes": json.loads(server["notes"]),
        "flags": flags(server),
        "repository": server["repository"],
        "checks": {key: asdict(check) for key, check in checks.of(server).items()},
    }


def in_words(result: Mapping[str, Any]) -> str:
    """The result of `trust` on one line."""
    parts = [f"vouched for by {', '.join(result['vouched'])}" if result["vouched"] else "not verified"]
    parts += [f"did not start at {name}" for name in result["failed"]]
    parts += [f"official ({item['source']})"] if (item := result["official"]) else []
    parts += [f"{item['value']} ({item['source']})"] if (item := result["status"]) else []
    for name in ("licence", "stars", "updated"):
        parts += [f"{name} {item['value']} ({item['source']})"] if (item := result[name]) else []
    parts += [f"texts changed {result['text_changed']}"] if result["text_changed"] else []
    address = result["repository"]
    parts += [checks.in_words(key, checks.Check(**check), address) for key, check in result["checks"].items()]
    return "; ".join([*parts, *result["notes"], *(f"flag: {flag}" for flag in result["flags"])])
