"""Small data sets made in memory, the configured systems, and what every system is asked."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
import torch
from omegaconf import OmegaConf

from baselines.training import Schedule
from study.config import compose as config
from study.data.dataset import Dataset, relevance_from_lists
from study.data.splits import Split
from study.data.toys import LABELS, WORDS, make_dataset
from study.data.toys import block_dataset as block_dataset
from study.data.toys import relabelled as relabelled
from study.data.toys import with_other_answers as with_other_answers
from study.evaluation.metrics import recall
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.system import Ranker

N_TASKS, N_SERVERS = 40, 30


def copy_dataset(seed: int = 0) -> tuple[Dataset, Split]:
    """Tasks 20-39 repeat text, attributes and labels of tasks 0-19, and only the latter are training tasks."""
    rng = np.random.default_rng(seed)
    words = np.array([word for block in WORDS for word in block])
    tasks, lists = [], []
    for number in range(N_TASKS // 2):
        text = " ".join(rng.choice(words, 6, replace=False))
        attributes = {"language": "Go", "category": "work", "subcategory": f"s{number % 4}", "theme": f"t{number % 7}"}
        tasks.append({"name": text, "description": f"unique{number} {text}", **attributes})
        lists.append([int(row) for row in rng.choice(N_SERVERS, LABELS, replace=False)])
    servers = [{"name": f"server {word}", "description": word} for word in rng.choice(words, N_SERVERS)]
    data = make_dataset(tasks * 2, servers, lists * 2)
    return data, split_of(data, np.arange(20), np.arange(20, 40))


def group_copies(seed: int = 0) -> tuple[Dataset, Split]:
    """Tasks 20-39 repeat text and list of tasks 0-19, the training tasks, and ten of them are validation tasks.

    A list is one of three sets of ten servers, so that a collaborative system can learn it, and the texts are drawn
    without regard to it, so that only the copied task tells which.
    """
    data, _ = copy_dataset(seed)
    groups = np.arange(N_SERVERS).reshape(3, -1)
    lists = tuple(groups[number % 20 % 3] for number in range(N_TASKS))
    tasks = data.tasks.assign(subcategory="", theme="")
    data = replace(data, tasks=tasks, lists=lists, relevance=relevance_from_lists(lists, N_SERVERS))
    return data, split_of(data, np.arange(20), np.arange(30, 40), np.arange(20, 30))


def split_of(data: Dataset, train: object, test: object, valid: object = ()) -> Split:
    """The cold split in which the tasks of these rows have all their labels in one part."""
    masks = (np.isin(np.arange(data.n_tasks), rows) for rows in (train, valid, test))
    parts = (sp.csr_matrix(np.diag(mask.astype(np.float32))) @ data.relevance for mask in masks)
    return Split("cold", *parts, cold=True)


def all_training(data: Dataset) -> Split:
    """A warm split with every label in training."""
    return Split("warm", data.relevance, data.relevance * 0, data.relevance * 0, cold=False)


def bare(train: object) -> tuple[object, Split]:
    """Training interactions with nothing else: what `fit` of a collaborative system takes as data set and split."""
    matrix = sp.csr_matrix(train, dtype=np.float32)
    data = SimpleNamespace(n_tasks=matrix.shape[0], n_servers=matrix.shape[1])
    return data, Split("warm", matrix, matrix * 0, matrix * 0, cold=False)


def without_training(split: Split, gaps: np.ndarray) -> Split:
    """The split without the training interactions of some servers, which are given by row or by mask."""
    train = split.train.tolil()
    train[:, gaps] = 0
    train = sp.csr_matrix(train)
    train.eliminate_zeros()
    return replace(split, train=train)


def build(name: str, **model: object) -> object:
    """The system of ``conf/system/<name>.yaml`` at the smallest size, with changed constructor arguments."""
    # `++`: a base named with `model_of` has its settings in the file of another system. A constructor refuses others.
    changes = [f"++system.model.{key}={value}" for key, value in model.items()]
    resolved = config.plain(config.load([f"system={name}", "profile=smoke", *changes]))
    return config.build_system(OmegaConf.create(resolved).system)


def save_tokenizer(folder: Path, words: list[str], **special: str) -> None:
    """A character-level tokenizer, written as that of a published model is."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    names = {"eos_token": "</s>", "unk_token": "<unk>", **special}
    PreTrainedTokenizerFast(tokenizer_object=model, **names).save_pretrained(folder)


def weights_of(module: torch.nn.Module) -> list[np.ndarray]:
    return [weight.detach().numpy() for weight in module.parameters()]


def all_epochs(epochs: int) -> Schedule:
    """A schedule without selection."""
    return Schedule(epochs=epochs, patience=None)


def fit(system: object, data: Dataset, split: Split, workdir: Path | None = None, *, seed: int = 1, **model) -> object:
    """The fitted system; a name stands for the configured system, with changed arguments."""
    system = build(system, **model) if isinstance(system, str) else system
    system.fit(data, split, seed=seed, workdir=workdir)
    return system


def ask(system: object, split: Split, part: str) -> np.ndarray:
    """Everything that a fitted system says about the tasks of `part`: scores, or ranked rows and their scores."""
    tasks = split.tasks(part)
    said = [system.score(tasks)] if hasattr(system, "score") else []
    if isinstance(system, Ranker):
        said += system.rank(tasks, 10, split.known(part))
    return np.concatenate(said, axis=1)


def scores(system: object, data: Dataset, split: Split, part: str, workdir: Path, *, seed: int = 1) -> np.ndarray:
    """Fit, then ask."""
    return ask(fit(system, data, split, workdir, seed=seed), split, part)


def top10(system: object, data: Dataset, split: Split, part: str = "test", *, seed: int = 1) -> np.ndarray:
    """The ten best servers that are not known, for each task of `part`."""
    tasks = split.tasks(part)
    known = mask_known(system.score(tasks).copy(), tasks, split.known(part))
    return top_k(known, 10, tie_order(data.n_servers, seed))[0]


def recall10(system: object, data: Dataset, split: Split, part: str = "test") -> np.ndarray:
    """Recall@10 of a fitted system on each task of `part`."""
    return recall(top10(system, data, split, part), split.part(part)[split.tasks(part)], 10)
