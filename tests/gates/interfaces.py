"""Gate "interfaces": the 110 requests of ``conf/recommend/requests.yaml`` name the same servers by every interface.

`study recommend`, `study agent ask`, the page and the agent's MCP server are asked in this process, over Task2MCP and
over the open catalogue, as far as they are in the project folder (`T2M_ROOT`, such as the one that
``tests/gates/answers.py prepare`` makes). Exit code 1 if an answer differs.

    T2M_ROOT=.cache/gates/answers .venv/bin/python tests/gates/interfaces.py [task2mcp] [open]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from study.advisor.agent.conversation import Agent
from study.advisor.engine import catalogue
from study.advisor.engine.intent.feedback import FeedbackStore
from tests.advisor.agent.test_interfaces import by_mcp, by_page
from tests.gates.answers import call, requests

INTERFACES = ("study recommend", "study agent ask", "page", "MCP server")


def ids(said: str) -> list[int | str]:
    """The servers of an answer in JSON, after the line with the exit code."""
    found = json.JSONDecoder().raw_decode(said, said.index("{"))[0]["recommendations"]
    return [row["server_id"] for row in found]


def differing(name: str, asked: list[str]) -> dict[str, list[str]]:
    """Interface -> the requests that it answers otherwise than `study recommend`, over one catalogue."""
    loaded = catalogue.load([name])
    catalogue.load = lambda *_: loaded  # read once for all requests
    agent = Agent(loaded)
    first, *others = (
        [ids(call(*words, request, "--catalog", name, "--json")) for request in asked]
        for words in (("recommend",), ("agent", "ask"))
    )
    with TemporaryDirectory() as folder:
        others.append(by_page(agent, FeedbackStore(Path(folder) / "feedback.sqlite"), asked))
    others.append(by_mcp(agent, asked))
    return {
        interface: [request for request, one, two in zip(asked, first, found, strict=True) if one != two]
        for interface, found in zip(INTERFACES[1:], others, strict=True)
    }


def main() -> int:
    """Print the table; see the module."""
    asked, load, wrong = requests(), catalogue.load, 0
    for name in sys.argv[1:] or ("task2mcp", "open"):
        for interface, others in differing(name, asked).items():
            print(
                f"{name}: {interface}: {len(asked) - len(others)} of {len(asked)} as study recommend",
                *others,
                flush=True,
            )
            wrong += len(others)
        catalogue.load = load
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
