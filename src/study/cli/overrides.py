"""Hydra overrides on the command line."""

from __future__ import annotations

from collections.abc import Collection
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from study.config.registry import GROUPS, choices, folder_of
from study.errors import StudyError

if TYPE_CHECKING:
    from omegaconf import DictConfig

Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Hydra overrides, e.g. dataset=task2mcp")
]

Replace = Annotated[
    bool,
    typer.Option(
        "--replace",
        help="Replace results that were made under another profile, as in "
        "`study run system=tfidf profile=full --replace` after one under laptop.",
    ),
]


def configured(
    overrides: list[str] | None, reads: Collection[str] | None = None, *, trains: bool = False, logs: bool = False
) -> DictConfig:
    """The configuration. `reads`: the groups that a command reads, if few; any other override would change nothing.
    `trains`, `logs`: the command trains on what the key `trainer` says, and reports to what `logger` says; elsewhere
    these keys have no effect."""
    from study.config.compose import load

    _list_choices(overrides or [])
    config, own = load(overrides), {"trainer": trains, "logger": logs}
    for word in overrides or []:
        key = word.lstrip("+~").partition("=")[0]
        idle = not own.get(key, True) if reads is None else key.split(".")[0] not in (*reads, "profile")
        if idle:
            fix = f"leave it out; to change it for good, edit {_file_of(key, config)}"
            raise StudyError(f"{word!r} has no effect here", column=key, fix=fix)
    if trains:
        from study.runner.devices import on_trainer

        return on_trainer(config)
    return config


def _list_choices(overrides: list[str]) -> None:
    """Print what a group offers where ``GROUP=?`` asks for it, systems by folder, and end the command."""
    for group in GROUPS:
        if f"{group}=?" not in overrides:
            continue
        folders: dict[str, list[str]] = {}
        for name in choices(group):
            folders.setdefault(folder_of(name) if group == "system" else group, []).append(name)
        for folder, names in folders.items():
            typer.echo(fill(" ".join(names), 100, initial_indent=f"{folder:9} ", subsequent_indent=" " * 10))
        raise typer.Exit


def _file_of(key: str, config: DictConfig) -> str:
    group, dot, _ = key.partition(".")
    return f"conf/{group}/{config[group].name}.yaml" if dot and group in GROUPS else "conf/config.yaml"
