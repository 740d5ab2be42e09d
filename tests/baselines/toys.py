"""Small data sets made in memory, the configured systems, and what every system is asked."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from omegaconf import OmegaConf

from baselines.training import Schedule
from study.config import compose as config
from study.config.registry import system_settings as settings
from study.data.dataset import SERVER_FIELDS, TASK_FIELDS, Dataset, relevance_from_lists
from study.data.splits import Split
from study.evaluation.ranking import mask_known, tie_order, top_k
from study.evaluation.system import Ranker

N_TASKS, N_SERVERS, LABELS = 40, 30, 10
PARTS = ("train", "valid", "test")
# Systems that read the answers on purpose declare this family and are left out of the leak tests.
ORACLE = "oracle"
WORDS = (
    ("database", "query", "index", "storage", "record", "column", "schema", "cursor", "backup", "replica"),
    ("image", "camera", "pixel", "colour", "contrast", "shadow", "texture", "polygon", "lighting", "render"),
)


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).fillna("").reindex(columns=list(dict.fromkeys(["id", *columns])), fill_value="")
    return frame.astype(str).assign(id=np.arange(1, len(frame) + 1))


def make_dataset(tasks: list[dict[str, str]], servers: list[dict[str, str]], lists: list[list[int]]) -> Dataset:
    """A data set from partial rows (absent fields are empty) and server row numbers per task."""
    rows = tuple(np.array(row, dtype=np.int64) for row in lists)
    return Dataset(
        "toy",
        table(servers, (*SERVER_FIELDS, "url", "official", "origin", "license", "stars_count")),
        table(tasks, (*TASK_FIELDS, "subcategory")),
        relevance_from_lists(rows, len(servers)),
        rows,
    )


def block_dataset(
    seed: int = 0, *, words: object = WORDS, n_tasks: int = 20, n_servers: int = 15, n_words: int = 4
) -> Dataset:
    """Blocks of tasks, which list ten servers of their own block alone and share its words."""
    rng = np.random.default_rng(seed)
    tasks, servers, lists = [], [], []
    for block, own in enumerate(words):
        for _ in range(n_servers):
            chosen = rng.choice(own, n_words, replace=False)
            servers.append({"name": chosen[0], "description": " ".join(chosen), "language": "Python"})
        for number in range(n_tasks):
            chosen = rng.choice(own, n_words, replace=False)
            kind = {"category": ("work", "play")[number % 2], "subcategory": f"sub{block}", "language": "Python"}
            texts = {"name": f"{chosen[0]} {chosen[1]}", "description": " ".join(chosen)}
            tasks.append(texts | kind | {"theme": f"theme{block}{number % 3}"})
            lists.append([int(row) for row in block * n_servers + rng.choice(n_servers, LABELS, replace=False)])
    return make_dataset(tasks, servers, lists)


def made_up(folder: Path, **settings: object) -> Dataset:
    from study.data import dataset, prepare, synthetic

    raw = synthetic.generate(folder / "raw", **settings)
    prepare.prepare("synthetic", raw, folder / "prepared", folder / "tables")
    return dataset.load("synthetic", folder / "prepared")


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


def split_of(data: Dataset, train: object, test: object, valid: object = (), protocol: str = "cold") -> Split:
    """The split in which the tasks of these rows have all their labels in one part."""
    masks = (np.isin(np.arange(data.n_tasks), rows) for rows in (train, valid, test))
    parts = (sp.csr_matrix(np.diag(mask.astype(np.float32))) @ data.relevance for mask in masks)
    return Split(protocol, *parts, cold=protocol == "cold")


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


def relabelled(data: Dataset, split: Split, seed: int = 5) -> tuple[Dataset, Split, np.ndarray]:
    """The same data with its servers in another order, and the new row of each server."""
    new_row = np.random.default_rng(seed).permutation(data.n_servers)
    old_row = np.argsort(new_row)
    lists = tuple(new_row[row] for row in data.lists)
    servers = data.servers.iloc[old_row].reset_index(drop=True).assign(id=data.servers["id"])
    moved = {part: sp.csr_matrix(split.part(part)[:, old_row]) for part in PARTS}
    other = replace(data, servers=servers, lists=lists, relevance=relevance_from_lists(lists, data.n_servers))
    return other, replace(split, **moved), new_row


def with_other_answers(data: Dataset, split: Split, parts: tuple[str, ...], seed: int = 7) -> tuple[Dataset, Split]:
    """The same training interactions, but random other servers wherever `parts` had labels (in the data set, too)."""
    rng = np.random.default_rng(seed)
    answers = {name: split.part(name).tolil() for name in PARTS}
    lists = [row.copy() for row in data.lists]
    for task in range(data.n_tasks):
        for name in parts:
            places = np.flatnonzero(np.isin(lists[task], split.part(name)[[task]].indices))
            free = np.setdiff1d(np.arange(data.n_servers), [*data.lists[task], *lists[task]])
            lists[task][places] = rng.choice(free, len(places), replace=False)
            answers[name][task] = 0
            answers[name][task, lists[task][places]] = 1
    changed = replace(data, lists=tuple(lists), relevance=relevance_from_lists(tuple(lists), data.n_servers))
    matrices = {name: sp.csr_matrix(matrix, dtype=np.float32) for name, matrix in answers.items()}
    return changed, replace(split, **matrices)


def build(name: str, **model: object) -> object:
    """The system of ``conf/system/<name>.yaml`` at the smallest size, with changed constructor arguments."""
    changes = [f"system.model.{key}={value}" for key, value in model.items()]
    resolved = config.plain(config.load([f"system={name}", "profile=smoke", *changes]))
    return config.build_system(OmegaConf.create(resolved).system)


def ranked_systems() -> list[str]:
    """Every system in ``conf/system`` but oracles, which read the answers, and systems with tests of their own: those
    that start a process per fit (``subprocess``) and those that ask a language model.
    """
    systems = {name: settings(name) for name in config.choices("system")}
    return [
        name
        for name, own in systems.items()
        if own.get("family") != ORACLE and not own.get("subprocess", False) and "endpoint" not in own.model
    ]


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
    wanted = split.part(part)[split.tasks(part)]
    hits = [np.isin(row, wanted[[n]].indices).sum() for n, row in enumerate(top10(system, data, split, part))]
    return np.array(hits) / np.diff(wanted.indptr)


def own_block(ranked: np.ndarray, data: Dataset, split: Split) -> float:
    """The share of the ranked servers of `block_dataset` that are of their test task's own block."""
    return float(((ranked >= N_SERVERS // 2) == (split.tasks("test") >= data.n_tasks // 2)[:, None]).mean())
