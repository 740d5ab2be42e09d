"""What the rows of a profile would take on a GPU, estimated: `study bench --hours`.

The generative baselines, whose sizes follow the profile most, are counted: operations of some steps of an epoch and of
decoding, by torch's counter, on tensors without contents, so that no weights and no GPU are needed. A row that is not
counted takes what its committed record says, as if a card were no faster than one core.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig, OmegaConf
from tqdm import tqdm

from study import paths
from study.analysis.report.tables import markdown
from study.config.compose import build_system, load, plain
from study.config.reader import read_settings
from study.config.registry import changed, parents, system_settings
from study.data.dataset import Dataset
from study.data.splits import Split
from study.encoders.sentence import DIMENSION
from study.evaluation.records import read_record, record
from study.files import write_csv, write_json
from study.pipeline.plan import rows
from study.runner.inputs import load_inputs
from study.runner.outputs import Outputs
from study.search.tune import sweep_folder, trainings

if TYPE_CHECKING:
    from torch import nn

COUNTED, RECORDED, NOT_KNOWN = "counted", "recorded", "not known"
TRILLION, HOUR = 1e12, 3600


@dataclass(frozen=True)
class Published:
    """A published model: the size of its vocabulary, and the sizes that make one like it."""

    vocabulary: int
    sizes: dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """``conf/gpu_hours.yaml``, where every key is explained."""

    card: str
    teraflops: float
    share: float
    step_seconds: float
    steps: int
    published: dict[str, Published]

    @classmethod
    def read(cls) -> Settings:
        """The file, checked."""
        return read_settings(cls, paths.conf() / "gpu_hours.yaml")

    def hours(self, operations: float, steps: float = 0) -> float:
        """Hours of the card for operations in so many steps."""
        return max(operations / (self.teraflops * TRILLION * self.share), steps * self.step_seconds) / HOUR


@dataclass(frozen=True)
class Operations:
    """Of one seed, in float32: a multiply-add counts as two."""

    parameters: int
    steps: int
    step: float  # of one step of the language model, on average
    code_steps: int  # of training the RQ-VAE, which protocols and trials share
    codes: float
    decoding: float  # all looks at validation, and the ranking

    @property
    def training(self) -> float:
        """Of the language model."""
        return self.step * self.steps


def gpu_hours(config: DictConfig) -> str:
    """Estimate every row that trains under the configured profile; write gpu_hours.csv and its record.

    Columns: protocol, system, basis, parameters, steps, teraflop_step, teraflop_codes, teraflop_decoding (of a seed),
    seeds, trials (of `study tune`, counted as the shares in ``system.rungs`` of trainings), hours (of the row).
    Raises StudyError: the prepared data or a split is missing.
    """
    settings, dataset = Settings.read(), config.dataset.name
    found = pd.DataFrame(list(_estimates(config, settings)))
    path = paths.tables(dataset) / "gpu_hours.csv"
    write_csv(path, found)
    facts = {"settings": dataclasses.asdict(settings), "profile": config.profile.name, "tuning": plain(config.tuning)}
    write_json(paths.results(dataset) / "records" / "gpu_hours.json", record(dataset=dataset, **facts))
    sums = found.groupby("basis")["hours"].agg(["size", "sum"]).reset_index()
    return markdown(found[found["basis"] == COUNTED].round(3)) + "\n" + markdown(sums.round(2))


def _estimates(config: DictConfig, settings: Settings) -> Iterator[dict[str, Any]]:
    dataset, profile, tuning = config.dataset.name, config.profile.name, config.tuning
    wanted = [row for row in rows(dataset) if row.system.trains]
    inputs = {name: load_inputs(dataset, name) for name in {row.protocol.name for row in wanted}}
    counts: dict[tuple[str, int], Operations] = {}
    for row in tqdm(wanted, desc="rows", unit="row", disable=None):
        protocol, name = row.protocol.name, row.system.name
        words = [f"dataset={dataset}", f"system={name}", f"protocol={protocol}"]
        own = load([*words, f"profile={profile}"])
        seeds, trials = len(own.system.seeds), 0
        if own.system.tuned == protocol and own.system.search:
            trials = int(tuning.trials)
        front = {"protocol": protocol, "system": name}
        if not _is_counted(own.system.model):
            hours = _recorded_hours(row, seeds)
            basis = NOT_KNOWN if math.isnan(hours) else RECORDED
            yield front | {"basis": basis, "seeds": seeds, "trials": trials, "hours": hours}
            continue
        # Variants count as the system that they build on, and protocols with as many training tasks as one.
        above = [each for each in parents(name) if protocol in system_settings(each).protocols]
        base = [name, *above][-1]
        key = base, len(inputs[protocol][1].tasks("train"))
        if key not in counts:
            whole = load([f"dataset={dataset}", f"system={base}", f"protocol={protocol}", f"profile={profile}"])
            counts[key] = operations(whole, settings, *inputs[protocol])
        one = counts[key]
        fits = seeds + trainings(trials, own.system.rungs)
        hours = fits * settings.hours(one.training, one.steps) + (seeds + trials) * settings.hours(one.decoding)
        hours += seeds * settings.hours(one.codes, one.code_steps)
        yield front | {
            "basis": COUNTED,
            "parameters": one.parameters,
            "steps": one.steps,
            "teraflop_step": one.step / TRILLION,
            "teraflop_codes": one.codes / TRILLION,
            "teraflop_decoding": one.decoding / TRILLION,
            "seeds": seeds,
            "trials": trials,
            "hours": hours,
        }


def _is_counted(model: DictConfig) -> bool:
    """Whether a system has a language model whose sizes follow the profile."""
    return OmegaConf.select(model, "size.full._target_") is not None


def _recorded_hours(row: DictConfig, seeds: int) -> float:
    """Hours that the committed seeds of a row and its search took; NaN where there is no record."""
    file = Outputs.of(row.dataset.name, row.protocol.name, row.system.name).record
    if not file.exists():
        return math.nan
    taken = [seed["seconds_fit"] + seed["seconds_score"] for seed in read_record(file)["seeds"]]
    searched = sweep_folder(row) / "record.json"
    once = row.system.tuned == row.protocol.name and searched.exists()
    return (seeds * float(np.mean(taken)) + (read_record(searched)["seconds"] if once else 0.0)) / HOUR


def operations(config: DictConfig, settings: Settings, data: Dataset, split: Split) -> Operations:
    """Count one seed of a generative baseline at the size of the configured profile."""
    small, published = _without_weights(config, settings)
    system: Any = build_system(small.system)
    system.train = lambda *_: None  # identifiers, texts and the model at its size, untrained
    with tempfile.TemporaryDirectory() as folder:
        system.fit(data, split, seed=1, workdir=Path(folder))
    model = getattr(system.writer, "lm", None) or system.writer.t5
    if published is not None:
        model.resize_token_embeddings(published.vocabulary, mean_resizing=False)
    parameters = sum(weight.numel() for weight in system.writer.parameters())
    model.set_attn_implementation("eager")  # products, which the counter knows
    batches = system.batches(0, 1)
    chosen = [batches[place] for place in np.linspace(0, len(batches) - 1, settings.steps).astype(int)]
    step = sum(_count(system.writer, batch) for batch in chosen) / len(chosen)
    looks = build_system(config.system).training
    asked = {part: len(split.tasks(part)) for part in ("valid", "test")}
    decoded = looks.evaluations * min(looks.validation_tasks, asked["valid"]) + asked["test"]
    codes, code_steps = 0.0, 0
    if system.codes is not None:
        rounds = build_system(config.system).quantiser.training
        code_steps = math.ceil(data.n_servers / rounds.batch_size) * rounds.epochs
        codes = code_steps * _count(system.codes, system.codes.codebooks.new_zeros(rounds.batch_size, DIMENSION))
    decoding = decoded * _decoding(system, split)
    return Operations(parameters, len(batches) * looks.epochs, step, code_steps, codes, decoding)


def _without_weights(config: DictConfig, settings: Settings) -> tuple[DictConfig, Published | None]:
    """The configuration on the processor, with one epoch of the RQ-VAE, and a model like the published one."""
    profile, published = config.profile.name, None
    size = dict(plain(config.system.model.size)[profile]) | {"device": "cpu"}
    if size.get("pretrained"):
        published = settings.published[size["pretrained"]]
        size |= published.sizes | {"pretrained": None}
    values: dict[str, Any] = {f"system.model.size.{profile}": size}
    if "quantiser" in config.system.model:
        values |= {f"system.model.quantiser.device.{profile}": "cpu", "system.model.quantiser.training.epochs": 1}
    return changed(config, values, merge=False), published


def _count(module: nn.Module, batch: Any) -> float:
    """Operations of a step's forward and backward; those of AdamW are too few to count."""
    with counted() as operations:
        module(batch).backward()
    module.zero_grad()
    return operations()


@contextmanager
def counted() -> Iterator[Callable[[], float]]:
    """Count what torch would compute within the block, where tensors have shapes and no contents. Yields a function
    that tells the operations so far."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
        yield lambda: float(counter.get_total_flops())


def _decoding(system: Any, split: Split) -> float:
    """Operations of the search for one task: as many beams at every token as the search may have."""
    import torch

    tasks = split.tasks("test")[: system.score_batch]
    with torch.no_grad(), counted() as operations:
        decoder = system.decoder([system.asked(int(task)) for task in tasks])
        decoder.start()
        beams = torch.arange(len(tasks)).repeat_interleave(system.beam)
        for _ in range(system.tree.depth - 1):
            decoder.step(beams, torch.zeros_like(beams))
            beams = torch.arange(len(beams))
        return operations() / len(tasks)
