"""LiveMCPBench's log as history: what the five factors can be made of, and what they cannot.

It holds which tools one agent ran, whether they reported an error, and a person's verdict on every task. It holds no
times, no latencies, no second agent and no ratings of tools. So popularity has no decay and no bias, performance is
unknown for every tool (a constant), and a tool's rating is the verdict on the tasks that used it. The agent could only
run what its router had shown it: success and popularity are those of exposed tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from study.data.dataset import IntArray
from study.tools.catalogues.livemcpbench import Episode
from study.tools.catalogues.queries import QuerySet
from study.tools.intent.feedback import Statistics, empty
from study.tools.intent.settings import Float64Array
from study.tools.mcp_zero.routing import Request, parse_requests


@dataclass(frozen=True)
class Log:
    """Counts by task and tool, each of shape (n_episodes, n_tools)."""

    calls: Float64Array  # calls, successes: executions, and those without an error
    successes: Float64Array
    used: Float64Array  # 1 where the task used the tool at all
    approved: Float64Array  # 1 where it did and a person judged the task solved

    def statistics(self, episodes: np.ndarray, rating_scale: float) -> Statistics:
        """What is known after the chosen episodes. `episodes`: bool, shape (n_episodes,)."""
        nothing = empty(self.calls.shape[1])
        calls, successes, used, approved = (
            part[episodes].sum(axis=0) for part in (self.calls, self.successes, self.used, self.approved)
        )
        return Statistics(
            calls, successes, nothing.latency_ms, nothing.timed, approved * rating_scale, used, nothing.last_used
        )


def count(episodes: Sequence[Episode], n_tools: int) -> Log:
    """Count the executions of tools that the catalogue has."""
    calls, successes, approved = np.zeros((3, len(episodes), n_tools))
    for number, episode in enumerate(episodes):
        for execution in episode.executions:
            if execution.tool is not None:
                calls[number, execution.tool] += 1
                successes[number, execution.tool] += execution.ok
        approved[number] = (calls[number] > 0) * episode.success
    return Log(calls, successes, (calls > 0).astype(np.float64), approved)


@dataclass(frozen=True)
class Asks:
    """What a recommender is asked.

    Attributes:
        returned: the tools that the recorded router answered with, shape (len(queries), width), -1 where unfilled.
    """

    queries: QuerySet  # texts and labels; their groups are task ids
    episode: IntArray  # the row of the log that each belongs to, shape (len(queries),)
    selected: tuple[tuple[int, ...], ...]  # the tools that the agent ran for it
    returned: IntArray


def tasks(episodes: Sequence[Episode], queries: QuerySet) -> Asks:
    """The annotated tasks by their own text; labels are the annotators'."""
    place = {episode.task: row for row, episode in enumerate(episodes)}
    rows = np.array([place[task] for task in queries.ids], dtype=np.int64)
    selected = tuple(
        tuple(dict.fromkeys(run.tool for run in episodes[row].executions if run.tool is not None)) for row in rows
    )
    return Asks(queries, rows, selected, np.full((len(queries), 1), -1))


def blocks(episodes: Sequence[Episode]) -> list[Request]:
    """The request block of every query of `requests`, in its order."""
    return [
        asked[0]
        for episode in episodes
        for number, route in enumerate(episode.routes, start=1)
        if next((run.tool for run in episode.executions if run.after == number), None) is not None
        and (asked := parse_requests(route.text))
    ]


def requests(episodes: Sequence[Episode]) -> Asks:
    """The agent's requests that were followed by a known tool; the label is the first tool that it then ran."""
    ids, texts, labels, groups, rows, returned = [], [], [], [], [], []
    for row, episode in enumerate(episodes):
        for number, route in enumerate(episode.routes, start=1):
            ran = next((run.tool for run in episode.executions if run.after == number), None)
            asked = parse_requests(route.text)
            if ran is None or not asked:
                continue
            ids.append(f"{episode.task}:{number}")
            texts.append(f"{asked[0].server} {asked[0].tool}")
            labels.append(((ran,),))
            groups.append(episode.task)
            rows.append(row)
            returned.append(list(dict.fromkeys(route.returned)))
    width = max(1, *(len(shown) for shown in returned)) if returned else 1
    filled = np.array([[*shown, *[-1] * (width - len(shown))] for shown in returned], dtype=np.int64)
    queries = QuerySet("requests", tuple(ids), tuple(texts), tuple(labels), tuple(groups))
    return Asks(
        queries, np.array(rows, dtype=np.int64), tuple(own[0] for own in labels), filled.reshape(len(ids), width)
    )
