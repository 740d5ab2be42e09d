"""The bounded evidence of one recommended server: the only things an answer may say (paper, section 6.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.agent.text import plain, quoted, safe_link

# Field of the evidence -> column of the server table.
COLUMNS = {
    "name": "name",
    "description": "description",
    "tools": "tools",
    "languages": "language_tokens",
    "platforms": "system_tokens",
    "licence": "license_clean",
    "category": "category_clean",
    "subcategory": "subcategory_clean",
    "author": "author",
    "stars": "stars_count",
    "watchers": "watching_count",
    "activity": "activity",
    "official": "official",
    "directory": "origin",
    "repository_link": "url",
    "directory_link": "web_url",
}
LINKS = ("repository_link", "directory_link")
# Long texts are cut: what is cut is no evidence.
LONGEST = 4_000


@dataclass(frozen=True)
class Evidence:
    """What the catalogue says of one server, and how it was ranked.

    Attributes:
        server_id: its id in the data set.
        fields: field -> text as it may be shown; '' where the catalogue says nothing. A link that is no ordinary
            http(s) address is ''.
        scores: `total`, `rank` and the parts of the score.
    """

    server_id: int
    fields: Mapping[str, str]
    scores: Mapping[str, float]

    @property
    def label(self) -> str:
        """Name and id, the name in quotation marks that it cannot close."""
        return f"{quoted(self.fields['name'], 80)} (id {self.server_id})"

    @property
    def language_list(self) -> list[str]:
        """Languages in listed order; the first is the main one."""
        return [part.strip() for part in self.fields["languages"].split(",") if part.strip()]

    @property
    def stars(self) -> int:
        """Stars of the repository at the time of the release."""
        return int(self.fields["stars"])

    def searchable(self, names: tuple[str, ...] = ("name", "description", "tools")) -> dict[str, str]:
        """The descriptive fields that are not empty."""
        return {name: self.fields[name] for name in names if self.fields[name]}


def shown_fields(server: Mapping[Any, Any]) -> dict[str, str]:
    """The fields of one row of the server table, fit to be shown."""
    fields = {name: plain(str(server[column]), LONGEST) for name, column in COLUMNS.items()}
    for name in LINKS:
        fields[name] = safe_link(str(server[COLUMNS[name]])) or ""
    return fields


def source(field: str) -> str:
    """Where a field comes from, in words."""
    return f"catalogue:{COLUMNS[field]}" if field in COLUMNS else field
