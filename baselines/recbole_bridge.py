"""Any general recommender of RecBole 1.2.1 as a system: our split in, its scores out, our evaluator."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from baselines.collaborative import Representations, unranked_without_history
from study.base import paths
from study.base.errors import StudyError
from study.base.files import replacing, sha256, write_json
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.t2mrec.device import chosen

LOG = logging.getLogger(__name__)
LOG_FILE, LEARNED, FACTS = "recbole.log", "learned.safetensors", "facts.json"
# Leave-one-out with and without sampled negatives has one training part, so one training serves both protocols.
ONE_TRAINING = ("loo", "loo99")


@dataclass
class RecBole:
    """One RecBole model (Zhao et al., CIKM 2021), trained by `baselines.recbole_runner` in a subprocess.

    RecBole gets every task and every server, so that all servers are candidates, and the training interactions. Its
    metrics are not used. A task without training interactions has an untrained embedding and is not ranked.
    """

    model: str  # a class of `recbole.model.general_recommender`
    settings: Mapping[str, Any] = field(default_factory=dict)  # by RecBole's names; others keep RecBole's default
    epochs: int = 300  # passes over the training interactions at most
    evaluate_every: int = 10  # epochs between two evaluations on validation, checkpoints and lines of the log
    # Evaluations without a better validation NDCG@10 before training stops with the best state. None trains all epochs,
    # keeps the last state and reads no validation labels.
    patience: int | None = None
    checkpoint_seconds: float = 20.0  # least time between two checkpoints
    device: str = "cpu"  # or gpu, or auto, a GPU where torch sees one; a GPU's random numbers start anew on resuming

    @property
    def uses_validation(self) -> bool:
        """Whether training stops on validation labels."""
        return self.patience is not None

    def fit(self, data: Dataset, split: Split, *, seed: int, workdir: Path) -> None:
        """Train, or take up a stopped training in `workdir`; `StudyError` where the process failed or was killed."""
        self.histories = sp.csr_matrix(split.train)
        counts = count_known(self.histories)
        LOG.info("%s: %s", self.model, ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items()))
        if self.uses_validation and not len(np.intersect1d(split.tasks("valid"), split.tasks("train"))):
            raise StudyError(
                f"RecBole's {self.model} cannot stop on validation: no validation task has training interactions",
                column="model.patience",
                fix="set it to null and state the number of epochs",
            )
        folder = workdir / "recbole"
        job = self._write_job(folder, data, split, seed)
        kept = paths.cache() / "recbole" / f"{job['key'][:16]}-{code_key()}"
        place = next((place for place in (folder, kept) if is_complete(place, job["key"])), None)
        if place is None:
            LOG.info("%s: trains in a process of its own; its progress: tail -f %s", self.model, folder / LOG_FILE)
            self._train(folder)
            place = folder
        self.counts = counts
        self.facts: dict[str, Any] = json.loads((place / FACTS).read_text())
        self.learned = load_file(place / LEARNED)
        if split.protocol in ONE_TRAINING and place == folder and "tasks" in self.learned:
            kept.mkdir(parents=True, exist_ok=True)
            for name in (LEARNED, FACTS):  # the facts last: they say that the training is complete
                with replacing(kept / name) as temporary:
                    shutil.copyfile(place / name, temporary)

    def _write_job(self, folder: Path, data: Dataset, split: Split, seed: int) -> dict[str, Any]:
        """Write everything that the runner reads: atomic files by row number, interactions, job.json."""
        size = {"n_tasks": data.n_tasks, "n_servers": data.n_servers}
        job = asdict(self) | size | {"seed": seed, "device": chosen(self.device).type}
        parts = {"train": split.train} | ({"valid": split.valid} if self.uses_validation else {})
        digest = hashlib.sha256(json.dumps(job, sort_keys=True, default=dict).encode())
        for part in parts.values():
            digest.update(part.indptr.tobytes() + part.indices.tobytes())
        job["key"] = digest.hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in parts.items():
            sp.save_npz(folder / f"{name}.npz", part)
        (folder / "data").mkdir(exist_ok=True)
        tasks, servers = np.arange(data.n_tasks), np.arange(data.n_servers)
        write = partial(np.savetxt, fmt="%d", delimiter="\t", comments="")  # RecBole's atomic files have a typed header
        write(folder / "data/data.train.inter", np.transpose(split.train.nonzero()), header="task:token\tserver:token")
        write(folder / "data/data.user", tasks, header="task:token")
        write(folder / "data/data.item", servers, header="server:token")
        write_json(folder / "job.json", job)
        return job

    def _train(self, folder: Path) -> None:
        log = folder / LOG_FILE
        places = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
        with log.open("a") as stream:
            # -P: the working folder holds data and must never be searched for modules.
            command = [sys.executable, "-P", "-W", "ignore", "-m", "baselines.recbole_runner", "job.json"]
            done = subprocess.run(  # noqa: S603 - the command is our own, and no shell is involved
                command, cwd=folder, env=environment, stdout=stream, stderr=subprocess.STDOUT, check=False
            )
        if done.returncode:
            last = next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")
            raise StudyError(
                f"RecBole's {self.model} stopped with exit code {done.returncode}: {last[:200]}",
                file=log,
                fix="read the log; the same command goes on from the last checkpoint",
            )

    @staticmethod
    def check_settings(arguments: Mapping[str, Any], key: str) -> None:
        """Raise `StudyError` unless every one of the `settings` exists in RecBole, which takes any key without a word.

        Args:
            arguments: of the class, as in a yaml file.
            key: their place in the yaml file, for the message.
        """
        model, settings = str(arguments.get("model")), dict(arguments.get("settings") or {})
        # Read from the package's own files, since importing it takes seconds and changes numpy.
        folder = recbole_folder()
        general = {path.stem for path in (folder / "model/general_recommender").glob("*.py")}
        files = {path.stem: path for path in (folder / "properties/model").glob("*.yaml")}
        models = {name for name in files if name.lower() in general}
        require_known([model], models, "recbole has no model", f"{key}.model")
        names: dict[str, Any] = {}
        for path in (folder / "properties/overall.yaml", files[model]):
            names |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        require_known(settings, names, f"{model} has no setting", f"{key}.settings.")
        for name, value in settings.items():
            if isinstance(value, Mapping) and isinstance(names[name], Mapping):
                require_known(value, names[name], f"{name} has no key", f"{key}.settings.{name}.")

    @property
    def representations(self) -> Representations:
        """Vectors of all tasks, shape (n_tasks, d)."""
        if "tasks" not in self.learned:
            reason = f"RecBole's {self.model} has no task vectors to transfer"
            raise StudyError(reason, fix="use BPR, LightGCN, NGCF or NeuMF")
        return np.asarray(self.learned["tasks"])

    def score(self, tasks: IntArray) -> FloatArray:
        """The model's scores, shape (len(tasks), n_servers); -inf for tasks without training interactions."""
        rows = self.learned["scores" if "scores" in self.learned else "tasks"][torch.from_numpy(tasks)].numpy()
        scores = rows if "scores" in self.learned else self.score_representations(rows)
        return unranked_without_history(scores, self.histories[tasks])

    @torch.no_grad()
    def score_representations(self, rows: Representations) -> FloatArray:
        """Scores of the task vectors `rows`, shape (b, n_servers)."""
        return np.asarray(score(self.learned, torch.from_numpy(np.asarray(rows, dtype=np.float32))))

    def parameters(self) -> int:
        """The number of trained parameters."""
        return int(self.facts["parameters"])

    def report(self) -> dict[str, Any]:
        """Warm and cold tasks and servers, epochs, the best of them on validation, and the seconds of all epochs."""
        names = ("epochs", "best_epoch", "validation_ndcg", "seconds_trained")
        return self.counts | {name: self.facts[name] for name in names}


def recbole_folder() -> Path:
    """Where the package is. Raises StudyError: it is not installed."""
    spec = find_spec("recbole")
    if spec is None or spec.origin is None:
        raise StudyError("RecBole is not installed", fix="make setup")
    return Path(spec.origin).parent


def require_known(names: Iterable[str], known: Collection[str], what: str, key: str) -> None:
    """Raise `StudyError`, which names the nearest, unless all names are known; `key`: ends with a dot above them."""
    for name in map(str, names):
        if name not in known:
            near = get_close_matches(name, known) or sorted(known)
            column = f"{key}{name}" if key.endswith(".") else key
            raise StudyError(f"RecBole's {what} {name!r}", column=column, fix=f"one of: {', '.join(near)}")


def is_complete(folder: Path, key: str) -> bool:
    """Whether the folder holds what the job of this key learned."""
    facts = folder / FACTS
    return facts.exists() and bool(json.loads(facts.read_text())["job"] == key)


def code_key() -> str:
    """A short hash of what trains: this project's code, RecBole and torch."""
    files = (Path(__file__).with_name(f"recbole_{name}.py") for name in ("bridge", "runner"))
    parts = (*map(sha256, files), *map(version, ("recbole", "torch")))
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def count_known(train: sp.csr_matrix) -> dict[str, int]:
    """How many tasks and servers have training interactions (warm), and how many have none (cold)."""
    tasks, servers = int((np.diff(train.indptr) > 0).sum()), len(np.unique(train.indices))
    return {
        "warm_tasks": tasks,
        "cold_tasks": train.shape[0] - tasks,
        "warm_servers": servers,
        "cold_servers": train.shape[1] - servers,
    }


# Tasks per block of NeuMF: 4 x 5,642 pairs x 128 hidden units in float32 are 12 MB; blocks of 32 take twice as long.
BLOCK = 4


def score(learned: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Scores of every server for tasks that are known by `rows`, shape (b, d); shape (b, n_servers).

    `learned` has ``servers`` (n_servers, d) for models whose score is a product, or NeuMF's tensors (`neumf`).
    """
    if "servers" in learned:
        return rows @ learned["servers"].T
    blocks = [neumf(learned, block) for block in torch.split(rows, BLOCK)]
    return torch.cat(blocks) if blocks else rows.new_zeros(0, len(learned["gmf_servers"]))


def neumf(learned: dict[str, Tensor], rows: Tensor) -> Tensor:
    """NeuMF's logits (He et al. 2017, eq. 12) of every server; their order is that of the probabilities.

    The first layer is applied to tasks and servers apart, W [p; q] = W_p p + W_q q, instead of to every pair.

    Args:
        learned: ``gmf_servers`` (M, g), ``mlp_servers`` (M, h), layers ``mlp.<i>.weight`` and ``.bias``,
            ``output.weight`` (1, g + last width), ``output.bias`` (1,).
        rows: vectors of the tasks, those of the product branch before those of the layers, shape (b, g + h).
    """
    width = learned["gmf_servers"].shape[1]
    product, layered = rows[:, :width], rows[:, width:]
    first = learned["mlp.0.weight"]
    split = layered.shape[1]
    by_task = layered @ first[:, :split].T + learned["mlp.0.bias"]  # (b, d1)
    by_server = learned["mlp_servers"] @ first[:, split:].T  # (M, d1)
    hidden = (by_task[:, None, :] + by_server).relu_().flatten(0, 1)  # (b * M, d1); time goes into passes over memory
    layer = 1
    while f"mlp.{layer}.weight" in learned:
        hidden = torch.addmm(learned[f"mlp.{layer}.bias"], hidden, learned[f"mlp.{layer}.weight"].T).relu_()
        layer += 1
    output = learned["output.weight"][0]
    pairs = (product * output[:width]) @ learned["gmf_servers"].T
    return pairs + (hidden @ output[width:]).view(len(rows), -1) + learned["output.bias"]
