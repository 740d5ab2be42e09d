"""Train one RecBole model in a subprocess: ``python -m baselines.recbole_runner job.json``.

RecBole (Zhao et al., CIKM 2021) reads ``sys.argv``, changes numpy and writes beside the working folder; all of that
ends with the subprocess. The runner reads training interactions (validation ones only where it stops early) and writes
what the model learned. RecBole's own evaluation is not used: it is slow, and one evaluator measures all systems.
"""

import importlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from safetensors.torch import save_file
from torch import Tensor

from baselines.recbole_bridge import score
from study.base.files import replacing, write_json
from study.evaluation.metrics import ndcg

CUTOFF = 10  # NDCG@10, the study's criterion of every choice
USER, ITEM = "task", "server"
BLOCK = 512  # tasks scored at a time
# What a stored array calls.
ARRAYS = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, np.dtypes.UInt32DType]  # type: ignore[attr-defined]
# Aliases that numpy 2 removed and that `recbole.config.Config` copies at construction (RecBole issue 2162).
REMOVED_ALIASES = {"float_": np.float64, "complex_": np.complex128, "unicode_": np.str_, "bool8": np.bool_}


def restore_aliases() -> None:
    """Restore the removed names, before the first import of ``recbole``. `recbole.quick_start` must never be imported:
    it alone needs ray, and a ray that today's numpy breaks."""
    for name, kind in REMOVED_ALIASES.items():
        if name not in np.__dict__:
            setattr(np, name, kind)
    # scipy 1.13 removed this private method, with which RecBole's graph models fill matrices (RecBole issue 2034).
    sp.dok_matrix._update = lambda matrix, entries: matrix._dict.update(entries)


class Training:
    """A RecBole model, its data and its optimiser."""

    def __init__(self, job: dict[str, Any]) -> None:
        from recbole.config import Config
        from recbole.data.dataset import Dataset
        from recbole.data.utils import get_dataloader
        from recbole.sampler import Sampler
        from recbole.trainer import Trainer
        from recbole.utils import get_trainer, init_seed

        self.job = job
        # Not RecBole's own look-up: it goes on to models that need packages of their own, and fails on those.
        module = importlib.import_module(f"recbole.model.general_recommender.{job['model'].lower()}")
        kind = getattr(module, job["model"])
        # The job's settings, and what the study decides for all.
        fixed: dict[str, Any] = {"data_path": ".", "benchmark_filename": ["train"], "checkpoint_dir": "recbole"}
        fixed |= {"USER_ID_FIELD": USER, "ITEM_ID_FIELD": ITEM}
        fixed |= {"load_col": {"inter": [USER, ITEM], "user": [USER], "item": [ITEM]}}
        fixed |= {"seed": job["seed"], "reproducibility": True, "epochs": job["epochs"]}
        fixed |= {"use_gpu": job["device"] == "cuda", "gpu_id": "0" if job["device"] == "cuda" else ""}
        fixed |= dict.fromkeys(("show_progress", "save_dataset", "save_dataloaders"), False)
        config = Config(model=kind, dataset="data", config_dict=job["settings"] | fixed)
        init_seed(job["seed"], reproducibility=True)
        (train,) = Dataset(config).build()
        sampling, sampler = config["train_neg_sample_args"], None
        if sampling["distribution"] != "none":
            # Only training pairs are known here, so no held-out server is spared from being drawn as a negative one.
            sampler = Sampler(["train"], [train], sampling["distribution"], sampling["alpha"]).set_phase("train")
        self.loader = get_dataloader(config, "train")(config, train, sampler, shuffle=True)
        self.model = config.model_class(config, train).to(config["device"])
        if hasattr(self.model, "norm_adj_matrix"):  # or else each product sorts its entries first
            self.model.norm_adj_matrix = self.model.norm_adj_matrix.coalesce()
        self.trainer = get_trainer(config["MODEL_TYPE"], config["model"])(config, self.model)
        if type(self.trainer).fit is not Trainer.fit:  # the epochs are run here, without what such a loop does between
            sys.exit(f"{job['model']} has a training loop of its own, {type(self.trainer).__name__}.fit, not run here")
        if sampling.get("dynamic", False):
            self.loader.get_model(self.model)
        # RecBole numbers tasks and servers by first appearance, from 1.
        self.users, self.items = (
            torch.from_numpy(train.token2id(kind, list(map(str, range(n)))).astype(np.int64)).to(config["device"])
            for kind, n in ((USER, job["n_tasks"]), (ITEM, job["n_servers"]))
        )

    @torch.no_grad()
    def learned(self) -> dict[str, Tensor]:
        """What the model knows: representations of tasks and what scores them, or else the scores themselves."""
        self.model.eval()
        name, model = self.job["model"], self.model
        if name == "NeuMF":
            tasks = [table.weight[self.users] for table in (model.user_mf_embedding, model.user_mlp_embedding)]
            servers = {"gmf": model.item_mf_embedding, "mlp": model.item_mlp_embedding}
            tensors = {f"{part}_servers": table.weight[self.items] for part, table in servers.items()}
            layers = [*model.mlp_layers.parameters(), *model.predict_layer.parameters()]
            tensors |= {f"layer.{n}": layer for n, layer in enumerate(layers)} | {"tasks": torch.cat(tasks, dim=1)}
        elif name in ("LightGCN", "NGCF", "BPR"):
            tables = model.user_embedding.weight, model.item_embedding.weight
            users, items = tables if name == "BPR" else model.forward()
            tensors = {"tasks": users[self.users], "servers": items[self.items]}
        else:
            tensors = {"scores": torch.cat([self._scores(users) for users in torch.split(self.users, BLOCK)])}
        return {name: tensor.cpu() for name, tensor in tensors.items()}

    def _scores(self, users: Tensor) -> Tensor:
        """Scores of tasks and all servers by RecBole's own full-ranking prediction, shape (len(users), n_servers)."""
        from recbole.data.interaction import Interaction

        n_items = self.model.n_items
        try:
            scores = self.model.full_sort_predict(Interaction({USER: users}))
        except NotImplementedError:
            every = torch.arange(n_items, device=users.device).repeat(len(users))
            scores = self.model.predict(Interaction({USER: users.repeat_interleave(n_items), ITEM: every}))
        return scores.view(len(users), n_items)[:, self.items].float()  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        """All that the next epoch depends on, as tensors, arrays and numbers."""
        numpy_state = np.random.get_state(legacy=True)  # noqa: NPY002 - RecBole draws from it
        return {
            "model": self.model.state_dict(),
            "optimizer": self.trainer.optimizer.state_dict(),
            "random": [torch.get_rng_state(), numpy_state, random.getstate(), self.loader.generator.get_state()],
            "updates": getattr(self.model, "update", None),  # MultiVAE counts its steps
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.model.load_state_dict(state["model"])
        self.trainer.optimizer.load_state_dict(state["optimizer"])
        restores = torch.set_rng_state, np.random.set_state, random.setstate, self.loader.generator.set_state
        for restore, value in zip(restores, state["random"], strict=True):
            restore(value)
        if state["updates"] is not None:
            self.model.update = state["updates"]


@torch.no_grad()
def validation_ndcg(learned: dict[str, Tensor], valid: sp.csr_matrix, train: sp.csr_matrix) -> float:
    """Mean NDCG@10 over the tasks with validation interactions that have been trained on, training servers left out."""
    tasks = np.flatnonzero((np.diff(valid.indptr) > 0) & (np.diff(train.indptr) > 0))
    ranked = []
    for start in range(0, len(tasks), BLOCK):
        block = tasks[start : start + BLOCK]
        scores = learned["scores"][block].clone() if "scores" in learned else score(learned, learned["tasks"][block])
        scores[train[block].nonzero()] = -torch.inf
        ranked.append(scores.topk(CUTOFF, dim=1).indices.numpy())
    return float(np.mean(ndcg(np.concatenate(ranked), valid[tasks], CUTOFF)))


def train(job: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train, resuming from the checkpoint if there is one of this job; returns what was learned, and facts."""
    training, checkpoint = Training(job), Path("checkpoint.pt")
    epochs, train_pairs = training.trainer.epochs, sp.load_npz("train.npz").tocsr()
    valid = None if job["patience"] is None else sp.load_npz("valid.npz").tocsr()
    progress: dict[str, Any] = {"epoch": 0, "best_epoch": 0, "stale": 0, "seconds": 0.0, "best": -1.0, "model": None}
    if checkpoint.exists():
        with torch.serialization.safe_globals(ARRAYS):  # nothing else in the file is executed
            saved = torch.load(checkpoint, weights_only=True)
        if saved["job"] == job["key"]:
            progress = saved["progress"]
            training.restore(saved["state"])
            print(f"goes on after epoch {progress['epoch']}", flush=True)
    written, parent = time.monotonic(), os.getppid()
    while progress["epoch"] < epochs and (valid is None or progress["stale"] < job["patience"]):
        started = time.monotonic()
        loss = training.trainer._train_epoch(training.loader, progress["epoch"])
        progress["epoch"] += 1
        progress["seconds"] += time.monotonic() - started
        if os.getppid() != parent:
            sys.exit("the program that started this training has ended")
        line = f"epoch {progress['epoch']} of {epochs}: loss {np.sum(loss):.4f}, {time.monotonic() - started:.2f} s"
        if progress["epoch"] % job["evaluate_every"] and progress["epoch"] < epochs:
            print(line, flush=True)
            continue
        if valid is not None:
            quality = validation_ndcg(training.learned(), valid, train_pairs)
            progress["stale"] += 1
            if quality > progress["best"]:
                best = {name: value.clone() for name, value in training.model.state_dict().items()}
                progress |= {"best": quality, "best_epoch": progress["epoch"], "stale": 0, "model": best}
            line += f", validation NDCG@10 {quality:.4f}"
        print(line, flush=True)
        if time.monotonic() - written >= job["checkpoint_seconds"]:
            with replacing(checkpoint) as temporary:
                torch.save({"job": job["key"], "progress": progress, "state": training.state()}, temporary)
            written = time.monotonic()
    if progress["model"] is not None:
        training.model.load_state_dict(progress["model"])
    facts = {
        "epochs": progress["epoch"],
        "best_epoch": progress["epoch"] if valid is None else progress["best_epoch"],
        "validation_ndcg": None if valid is None else progress["best"],
        "seconds_trained": round(progress["seconds"], 3),
        "parameters": sum(weights.numel() for weights in training.model.parameters()),
    }
    return training.learned(), facts


def main(path: Path) -> None:
    """Run the job that the file describes, in its folder."""
    job = json.loads(path.read_text(encoding="utf-8"))
    sys.argv = sys.argv[:1]  # RecBole takes every argument for a setting
    restore_aliases()
    learned, facts = train(job)
    with replacing(Path("learned.safetensors")) as temporary:
        save_file({name: value.detach().float().contiguous() for name, value in learned.items()}, temporary)
    write_json(Path("facts.json"), facts | {"job": job["key"]})  # last: it says that the training is complete


if __name__ == "__main__":
    main(Path(sys.argv[1]))
