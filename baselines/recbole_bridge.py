"""Any general recommender of RecBole 1.2.1 as a system: our split in, its scores out, our evaluator."""

import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
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
from torch.nn.functional import linear, relu

from baselines.collaborative import Representations, unranked_without_history
from study.base import paths
from study.base.errors import StudyError, require_one_of
from study.base.files import replacing, sha256, write_json
from study.data.dataset import Dataset, FloatArray, IntArray
from study.data.splits import Split
from study.t2mrec.device import choose_device

LOG = logging.getLogger(__name__)
LOG_FILE, LEARNED, FACTS = "recbole.log", "learned.safetensors", "facts.json"
ONE_TRAINING = ("loo", "loo99")  # with one training part, so that one training serves both protocols


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
        if self.uses_validation and not len(np.intersect1d(split.tasks("valid"), split.tasks("train"))):
            reason = f"RecBole's {self.model} cannot stop on validation: no validation task has training interactions"
            raise StudyError(reason, column="model.patience", fix="set it to null and state the number of epochs")
        folder = workdir / "recbole"
        key = self._write_job(folder, data, split, seed)["key"]
        cache = paths.cache() / "recbole" / key[:32]
        trained = [source for source in (folder, cache) if (source / FACTS).exists()]
        source = next((each for each in trained if json.loads((each / FACTS).read_text())["job"] == key), None)
        if source is None:
            LOG.info("%s: trains in a process of its own; its progress: tail -f %s", self.model, folder / LOG_FILE)
            self._train(folder)
            source = folder
        self.facts: dict[str, Any] = json.loads((source / FACTS).read_text())
        self.learned = load_file(source / LEARNED)
        if split.protocol in ONE_TRAINING and source == folder and "tasks" in self.learned:
            cache.mkdir(parents=True, exist_ok=True)
            for name in (LEARNED, FACTS):  # the facts last: they say that the training is complete
                with replacing(cache / name) as temporary:
                    shutil.copyfile(source / name, temporary)

    def _write_job(self, folder: Path, data: Dataset, split: Split, seed: int) -> dict[str, Any]:
        """Write everything that the runner reads: atomic files by row number, interactions, job.json."""
        size = {"n_tasks": data.n_tasks, "n_servers": data.n_servers}
        job = asdict(self) | size | {"seed": seed, "device": choose_device(self.device).type}
        parts = {"train": split.train} | ({"valid": split.valid} if self.uses_validation else {})
        code = [sha256(Path(__file__).with_name(f"recbole_{name}.py")) for name in ("bridge", "runner")]
        parties = [job, *code, *map(version, ("recbole", "torch"))]
        digest = hashlib.sha256(json.dumps(parties, sort_keys=True, default=dict).encode())
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
            reason = f"RecBole's {self.model} stopped with exit code {done.returncode}: {last[:200]}"
            raise StudyError(reason, file=log, fix="read the log; the same command goes on from the last checkpoint")

    @staticmethod
    def check_settings(arguments: Mapping[str, Any], key: str) -> None:
        """Raise `StudyError`, with the nearest names, unless RecBole, which takes any key without a word, has each one
        of the `settings`. `arguments`: of the class, as in a yaml file; `key`: their place there."""
        # Read from the package's own files, since importing it takes seconds and changes numpy.
        (location,) = find_spec("recbole").submodule_search_locations  # type: ignore[misc, union-attr]
        folder, model = Path(location), str(arguments.get("model"))
        general = {path.stem for path in (folder / "model/general_recommender").glob("*.py")}
        files = (folder / "properties/model").glob("*.yaml")
        models = {path.stem: path for path in files if path.stem.lower() in general}
        near = models if model in models else get_close_matches(model, models) or sorted(models)
        require_one_of(model, "model of RecBole", near, column=f"{key}.model")
        names: dict[str, Any] = {}
        for path in (folder / "properties/overall.yaml", models[model]):
            names |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        require_known(arguments.get("settings") or {}, names, f"setting of RecBole's {model}", f"{key}.settings")

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
        """Epochs, the best of them on validation, and the seconds of all epochs."""
        return {name: self.facts[name] for name in ("epochs", "best_epoch", "validation_ndcg", "seconds_trained")}


def require_known(settings: Mapping[str, Any], defaults: Mapping[str, Any], what: str, key: str) -> None:
    """Raise `StudyError`, which lists the nearest names, unless all keys are known, at any depth; `key`: above them."""
    for name, value in settings.items():
        near = get_close_matches(str(name), defaults) or sorted(defaults)
        require_one_of(str(name), what, near, column=f"{key}.{name}")
        if isinstance(value, Mapping) and isinstance(defaults[name], Mapping):
            require_known(value, defaults[name], what, f"{key}.{name}")


BLOCK = 4  # tasks per block of NeuMF: 4 x 5,642 pairs x 128 hidden units in float32 are 12 MB


def score(learned: dict[str, Tensor], rows: Tensor) -> Tensor:
    """Scores of every server for tasks that are known by `rows`, shape (b, d); shape (b, n_servers).

    By ``servers``, shape (n_servers, d), of models whose score is a product; or NeuMF's logits (He et al. 2017, eq.
    12), whose order is that of its probabilities, by ``gmf_servers`` (M, g), ``mlp_servers`` (M, h), and in turn
    weights and biases of the layers and of the output, ``layer.<i>``; `rows` hold the vectors of the product branch
    first.
    """
    if "servers" in learned:
        return rows @ learned["servers"].T
    if len(rows) > BLOCK:
        return torch.cat([score(learned, block) for block in torch.split(rows, BLOCK)])
    servers, deep, width = learned["gmf_servers"], learned["mlp_servers"], learned["gmf_servers"].shape[1]
    product, layered = rows[:, None, :width], rows[:, None, width:]
    *weights, output, bias = (learned[f"layer.{n}"] for n in range(sum(name.startswith("layer.") for name in learned)))
    hidden = torch.cat([layered.expand(-1, len(deep), -1), deep.expand(len(rows), -1, -1)], dim=2)  # (b, M, 2 h)
    for weight, shift in zip(weights[::2], weights[1::2], strict=True):
        hidden = relu(linear(hidden, weight, shift))
    return linear(torch.cat([product * servers, hidden], dim=2), output, bias).squeeze(2)
