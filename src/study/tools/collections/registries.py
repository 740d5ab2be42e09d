"""The tools that the pinned registries of `study catalog` list: names and descriptions, without schemas."""

from __future__ import annotations

from study.advisor.catalog.archived import READERS
from study.advisor.catalog.archives import archive_files
from study.advisor.catalog.records import Reader
from study.advisor.catalog.settings import Sources
from study.advisor.retrieval.building import Builder
from study.advisor.retrieval.documents import ToolCatalog
from study.base.errors import require_one_of
from study.tools.collections.published import LOADERS, load_collection

PUBLISHED = (*LOADERS, *READERS)


def published_catalog(name: str) -> ToolCatalog:
    """A published collection, or the tools of a registry."""
    require_one_of(name, "published catalogue", PUBLISHED)
    return registry_catalog(name) if name in READERS else load_collection(name).catalog


def registry_catalog(source: str) -> ToolCatalog:
    """The servers of a registry that lists their tools; the category is the tag. `source`: a key of `READERS`."""
    settings, builder = Sources.read(), Builder(source)
    reader = Reader(source, settings.limits.text, settings.limits.tools)
    packed = archive_files(settings.archives[source], settings.limits)
    for record in READERS[source](packed, reader, settings.limits.file):
        if record.tools:
            tags = (record.category,) if record.category else ()
            server = builder.server(record.key, record.name, record.description, sources=(source,), tags=tags)
            for tool in record.tools:
                builder.tool(server, tool.name, tool.description, {})
    return builder.build()
