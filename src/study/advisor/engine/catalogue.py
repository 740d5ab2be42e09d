"""What can be asked: servers, a model that ranks them, and what is known of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from study.advisor.catalog.start import known_start
from study.advisor.engine.facts import Facts, Shelf
from study.advisor.saved import ahead, saved
from study.advisor.saved import open_catalogue as catalogue
from study.advisor.saved.contract import Recommendation, SavedModel
from study.base import paths
from study.base.errors import StudyError, UnavailableError, require_one_of

if TYPE_CHECKING:
    import pandas as pd

SYNC = "run: study catalog sync --source toolsdk"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Servers that a request is answered from.

    Attributes:
        name, system: as answers name them.
        model: ranks the servers.
        facts: what is known of a server that the model names.
        table: the servers of the open catalogue, whose row is the model's id of a server; None for a data set.
        open_servers: all servers of the open catalogue, as far as it is here.
        instead: what is said where another system answers than the one that is meant to; '' otherwise.
    """

    name: str
    system: str
    model: SavedModel
    facts: Callable[[Recommendation], Facts]
    table: pd.DataFrame | None = None
    open_servers: pd.DataFrame | None = None
    instead: str = ""

    @classmethod
    def of_dataset(cls, name: str, system: str, model: SavedModel, shelf: Shelf, instead: str = "") -> Catalogue:
        """The servers of a data set. `shelf`: what this machine knows of Task2MCP's."""

        def facts(server: Recommendation) -> Facts:
            return shelf.of_task2mcp(server.server_id, server.name, server.description)

        return cls(name, system, model, facts, open_servers=shelf.catalogue, instead=instead)

    @classmethod
    def of_table(cls, name: str, system: str, model: SavedModel, table: pd.DataFrame, shelf: Shelf) -> Catalogue:
        """Servers of the open catalogue. `table`: as `shelf` has them."""
        return cls(name, system, model, lambda server: shelf.of_catalogue(server.server_id), table, shelf.catalogue)

    @property
    def real(self) -> bool:
        """Whether its servers exist; those of a generated data set are invented."""
        return self.table is not None or self.name == saved.DATASET

    @property
    def themes(self) -> tuple[str, ...]:
        """The themes of tasks that the model knows; servers have none."""
        return tuple(getattr(self.model, "themes", ()))

    def row(self, server: Recommendation) -> dict[Any, Any]:
        """A server's row in the open catalogue; empty for a data set's."""
        return {} if self.table is None else self.table.loc[server.server_id].to_dict()

    def is_verified(self, server: Recommendation) -> bool:
        """Whether a source vouches for a way to start a server."""
        row = self.row(server)
        return bool(row) and known_start(row) is not None


def load(names: Sequence[str] | None = None, dataset: str | None = None, system: str | None = None) -> Catalogue:
    """The servers that answer: the open catalogue once it is synced, else those of Task2MCP.

    `names`: of `open_catalogue.NAMES`, in one ranking. `dataset`, `system`: whose saved model answers instead.
    Raises StudyError: an unknown name, both at a time, or what is asked for is not here.
    """
    if chosen := _chosen(names, dataset, system):
        model, table = catalogue.load(*chosen)
        title = f"catalogue {' and '.join(chosen)}"
        return Catalogue.of_table(title, catalogue.SYSTEM, model, table, Shelf.here(table))
    require(names, dataset, system)
    asked = system
    dataset, system = saved.choose(dataset or (saved.DATASET if names else None), asked)
    last = asked is None and system == saved.PREFERRED[-1]
    how = saved.how_to_save(dataset, saved.DEFAULT) if last else ""
    instead = f"{system} answers, since {saved.DEFAULT} was not exported ({how})" if last else ""
    reading = ahead.read_ahead(dataset, system)
    fitted = saved.load_saved_model(dataset, system)
    if reading is not None:
        reading.join()
    shelf = Shelf.here() if dataset == saved.DATASET else Shelf(None, None)
    return Catalogue.of_dataset(dataset, system, fitted, shelf, instead)


def require(names: Sequence[str] | None = None, dataset: str | None = None, system: str | None = None) -> None:
    """Raise StudyError, without reading any servers, where `load` could not answer."""
    if _chosen(names, dataset, system):
        return
    named = bool(names or dataset or system)
    dataset, system = saved.choose(dataset or (saved.DATASET if names else None), system)
    if saved.exists(dataset, system):
        return
    how = saved.how_to_save(dataset, system)
    if named:
        raise UnavailableError("no saved model here", file=saved.folder_of(dataset, system), fix=f"run: {how}")
    fix = f"{SYNC}; or for the servers of {dataset}: {how}"
    raise UnavailableError("there is no catalogue yet, and no saved model", file=paths.root(), fix=fix)


def _chosen(names: Sequence[str] | None, dataset: str | None, system: str | None) -> list[str]:
    """The catalogues that answer; none where a saved model of a data set does."""
    if not names:
        return ["open"] if dataset is None and system is None and catalogue.synced() else []
    for name in names:
        require_one_of(name, "catalogue", catalogue.NAMES, column="--catalog")
    if set(names) == {saved.DATASET}:
        return []
    if dataset or system:
        reason = f"--catalog {' and '.join(names)} has no other data set or system"
        raise StudyError(reason, fix="leave out --dataset and --system")
    return list(dict.fromkeys(names))
