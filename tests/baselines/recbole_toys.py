"""RecBole's models in toy sizes, and how their tests ask them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from baselines.recbole_bridge import RecBole
from study.base.registry import parents
from study.config import compose as config
from tests.baselines.toys import build, settings

RECBOLE = "baselines.recbole_bridge.RecBole"


def in_subprocess() -> dict[str, DictConfig]:
    """The systems of ``conf/system`` whose fit starts a program of its own: name -> yaml with what it inherits."""
    systems = {name: settings(name) for name in config.choices("system")}
    return {name: config.load([f"system={name}"]).system for name, own in systems.items() if own.subprocess}


def untuned(systems: dict[str, DictConfig], key: str | None = None) -> tuple[str, ...]:
    """The systems that are a RecBole model, or hold one below `key`; a tuned variant is its base with other values."""
    bases = {name: own.model for name, own in systems.items() if own.tuned is None or not parents(name)}
    models = {name: model if key is None else model.get(key, {}) for name, model in bases.items()}
    return tuple(name for name, model in models.items() if model.get("_target_") == RECBOLE)


SYSTEMS = in_subprocess()
# A new model joins by its yaml alone, and so does a system that ranks for new tasks through one.
EVERY_MODEL, TRANSFERS = untuned(SYSTEMS), untuned(SYSTEMS, "base")
# Those with a search space in a yaml of its own.
MODELS = tuple(name for name in EVERY_MODEL if f"{name}_tuned" in SYSTEMS)
# Passes and learning rate for 240 pairs. They make one step per epoch, so the steps are large. With more of them the
# layered models learn by heart which servers of the block were not in training.
DEFAULT_BLOCKS = (20, 0.02)
BLOCKS = {"bpr": (60, 0.02)}
# Passes, batch size and learning rate for 800 servers. A model that is not named here stops early, which takes longer.
PLANTED = {"neumf": (12, 1024, 0.005), "ngcf": (15, 512, 0.02), "lightgcn": (30, 512, 0.02), "bpr": (30, 512, 0.02)}
PLANTED |= {"multivae": (15, 64, 0.002), "simplex": (4, 12800, 0.02)}
configured = cache(build)


def fix(table, name):
    """What to add where a model that joins by its yaml alone does not learn a toy in the sizes of the others."""
    lines, model = Path(__file__).read_text().splitlines(), name.removesuffix("_transfer")
    line = next(number for number, text in enumerate(lines, 1) if text.startswith(f"{table} = {{"))
    entry = {"BLOCKS": "passes, learning_rate", "PLANTED": "passes, batch_size, learning_rate"}[table]
    return (
        f'{name} does not learn this toy; add "{model}": ({entry}) to {table}, tests/baselines/recbole_toys.py:{line}'
    )


def toy(name, epochs=None, patience=None, evaluate_every=4, **settings):
    """The configured system with large steps, by default for all epochs; composing it takes longer than training."""
    system = configured(name)
    base = getattr(system, "base", system)
    passes, rate = BLOCKS.get(name.removesuffix("_transfer"), DEFAULT_BLOCKS)
    own = {**base.settings, "learning_rate": rate, **settings}
    base = replace(base, epochs=epochs or passes, evaluate_every=evaluate_every, patience=patience, settings=own)
    return base if isinstance(system, RecBole) else replace(system, base=base, content=replace(system.content))


def toy_planted(name):
    """The configured system in the sizes of `PLANTED`, or in sizes that most models learn with."""
    model = name.removesuffix("_transfer")
    if model in PLANTED:
        epochs, batch, rate = PLANTED[model]
        return toy(name, epochs=epochs, train_batch_size=batch, learning_rate=rate)
    system = configured(name)
    patience = 3 if isinstance(system, RecBole) else None  # no validation task of a transfer was trained on
    batch = batch_size(getattr(system, "base", system))
    return toy(name, epochs=40, patience=patience, evaluate_every=2, train_batch_size=batch, learning_rate=0.005)


def batch_size(base):
    """64 tasks for a model that takes whole tasks; else RecBole's size of 256 pairs, with the negatives of each."""
    drawn = base.settings.get("train_neg_sample_args", {})
    return 64 if drawn is None else 256 * drawn.get("sample_num", 1)


def interruptible():
    """A training with a checkpoint after every epoch."""
    return replace(build("lightgcn", epochs=40, evaluate_every=1, patience=40), checkpoint_seconds=0)


def folder_of(system, data, split, workdir, seed=1):
    folder = workdir / "recbole"
    getattr(system, "base", system)._write_job(folder, data, split, seed)
    return folder


def said(system, split, part="test"):
    return system.score(split.tasks(part))
