"""What a row is made of: its settings in a normal form, versions of system and evaluator, data, split, what it reads.
A row is current while all of these are those of its record; a change of code counts by the versions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig

from study.advisor.encoders import mpnet, sentence
from study.base import paths
from study.base.errors import StudyError, require_file
from study.base.files import sha256
from study.base.registry import choices, merge_settings, system_settings
from study.base.settings import read_yaml
from study.config.compose import plain
from study.data import dataset as datasets
from study.reranking.pools import file_of
from study.reranking.replies import cassette

POOLED = "study.reranking.pools.PooledT2MRec"
# The table of the normal form. Records name classes and keys as they were called when a row was made.
# Class then -> class now.
CLASSES = {
    "baselines.label_ranker.LabelRanker": "baselines.probes.label_ranker.LabelRanker",
    "baselines.label_ranker_plain.LabelRankerPlain": "baselines.probes.label_ranker.LabelRanker",
    "baselines.attribute_counts.AttributeCounts": "baselines.probes.attribute_counts.AttributeCounts",
    "baselines.list_order.ListOrder": "baselines.probes.list_order.ListOrder",
    "baselines.oracle_neighbour.OracleNeighbour": "baselines.probes.oracle_neighbour.OracleNeighbour",
    "baselines.mpt_rec.MPTRecEmerging": "baselines.mpt_rec.MPTRec",
    "baselines.generative.causal.LlamaSize": "baselines.lc_rec.LlamaSize",
    "baselines.training.Optimisation": "baselines.training.Schedule",
    "study.tools.intent.servers.IntentServers": "baselines.intent.IntentServers",
    "study.usefulness.field_dense.FieldDense": "study.advisor.retrieval.field_dense.FieldDense",
    "study.usefulness.two_encoders.TwoEncoders": "study.advisor.retrieval.two_encoders.TwoEncoders",
    "baselines.supervision.Supervision": "study.t2mrec.supervision.Supervision",
    "baselines.supervision.T2MRecSupervised": "study.t2mrec.system.T2MRec",
    "study.t2mrec.device.DeviceT2MRec": "study.t2mrec.system.T2MRec",
    "study.t2mrec.program_languages.T2MRecProgramLanguages": "study.t2mrec.system.T2MRec",
    "study.t2mrec.program_loss.T2MRecPairs": "study.t2mrec.system.T2MRec",
}
# Class then -> the settings of the class now that it stood for.
OPTIONS: dict[str, dict[str, Any]] = {
    "baselines.label_ranker_plain.LabelRankerPlain": {"catalogue_place": False},
    "baselines.mpt_rec.MPTRecEmerging": {"head": "emerging"},
    "study.t2mrec.program_languages.T2MRecProgramLanguages": {"scoring": {"languages": "program"}},
    "study.t2mrec.program_loss.T2MRecPairs": {"training": {"loss": "program_bce"}},
}
# Class now -> keys that records may lack, with the values that reproduce what was done then.
DEFAULTS: dict[str, dict[str, Any]] = {
    "baselines.probes.label_ranker.LabelRanker": {"catalogue_place": True},
    "baselines.lc_rec.LCRec": {"device": "cpu"},
    "baselines.openp5.OpenP5": {"device": "cpu"},
    "baselines.tiger.Tiger": {"device": "cpu"},
    "study.t2mrec.settings.Scoring": {"languages": "study"},
    "study.t2mrec.settings.Training": {"in_batch": "rows", "negatives": 10},
}
# Class now or then -> keys that records may have and that are gone, with the value that reproduces what is done now.
GONE: dict[str, dict[str, Any]] = {
    "baselines.bm25.Bm25": {"stopwords": None},
    "baselines.cosine.DenseCosine": {"encoder": "minilm"},
    "baselines.cvh_rec.CVHRec": {"keywords": 0},
    "baselines.ials.ImplicitALS": {"spread": 0.1},
    "baselines.lc_rec.LCRec": {"template": 0},
    "baselines.linear_xmc.LinearXMC": {
        "attributes": ["theme", "language", "subcategory"],
        "fields": ["name", "description", "language", "category", "theme", "subcategory"],
        "max_features": 50_000,
    },
    "baselines.msbpr.MSBPR": {"counts": "binary"},
    "baselines.neighbours.ItemKNN": {"alpha": 0.5, "tfidf": False},
    "baselines.openp5.OpenP5": {"order": "random"},
    "baselines.probes.label_ranker.LabelRanker": {"max_features": 50_000, "max_ngram": 2},
    "baselines.tiger.Tiger": {"user_tokens": 0},
    "baselines.generative.quantisation.Quantiser": {"device": "cpu", "balanced": True},
    "baselines.generative.seq2seq.T5Size": {"device": "cpu"},
    "baselines.lc_rec.LlamaSize": {"device": "cpu"},
    "study.reranking.language_model.T2MRecWithLanguageModel": {"reranker": None},
    "study.reranking.listwise.T2MRecListwise": {"reranker": None},
    "study.reranking.pools.PooledT2MRec": {"reranker": None},
    "study.t2mrec.program_loss.T2MRecPairs": {"negatives": 10},
    "study.t2mrec.system.T2MRec": {"reranker": None},
}
# System -> class then -> class now, where the other class gives the same numbers.
CLASSES_OF = {"t2mrec_same_training": {"study.t2mrec.system.T2MRec": POOLED}}
# What stood for one of its values, by profile, and for a mapping of values by the choice of another setting.
BY_PROFILE, BY_CHOICE = "baselines.settings.of_profile", "baselines.settings.of_choice"
EVALUATOR = "evaluator"
# What a system may read beside the data, by the name under which it stands in records.
ENCODERS = {"minilm": lambda: sentence.model_version("minilm"), "mpnet": mpnet.version}


class Version(NamedTuple):
    """The version of a system's reference scores, and the text encoders that it reads (of `ENCODERS`)."""

    version: int
    encoders: tuple[str, ...] = ()


def versions_file() -> Path:
    """The stored versions, beside the reference scores."""
    return paths.root() / "tests" / "reference" / "versions.yaml"


def read_versions() -> dict[str, Version]:
    """The stored versions by system, that of the `EVALUATOR` among them. Raises StudyError: no readable file."""
    file, fix = versions_file(), "take the file from git"
    try:
        stated = read_yaml(file, fix=fix).items()
        return {str(name): Version(int(entry["version"]), tuple(entry.get("encoders", ()))) for name, entry in stated}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StudyError(f"the versions cannot be read: {error}", file=file, fix=fix) from error


def normal_form(value: Any) -> Any:
    """A part of settings as today's: classes by their names of today, a value for each profile or choice as the one
    that counts, keys that are missing with the value that they stood for, and none that is gone."""
    if isinstance(value, list | tuple):
        return [normal_form(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    target = value.get("_target_")
    if target == BY_PROFILE:
        return normal_form(value[value["profile"]])
    if target == BY_CHOICE:
        return normal_form({key: item for key, item in value.items() if key not in ("_target_", "choice")})
    settings = {str(key): normal_form(item) for key, item in value.items()}
    if target is None:
        return settings
    now = CLASSES.get(str(target), str(target))
    gone = (GONE.get(target, {}) | GONE.get(now, {})).items()
    settings = {key: item for key, item in settings.items() if (key, item) not in gone} | {"_target_": now}
    return DEFAULTS.get(now, {}) | merge_settings(settings, OPTIONS.get(target, {}))


def normal_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a row's numbers, in normal form: names, titles, workers, loggers and the budget of a
    search change none. `config`: plain settings of a run, as its record holds them, or as they are composed today."""
    system = config["system"]
    model = normal_form(system["model"])
    same = CLASSES_OF.get(system["name"], {})
    return {
        "dataset": config["dataset"]["name"],
        "protocol": config["protocol"]["name"],
        "threads": config["profile"]["threads"],
        "run_depth": config["run_depth"],
        "seeds": list(system["seeds"]),
        "model": model | {"_target_": same.get(model["_target_"], model["_target_"])},
    }


def identity(config: DictConfig) -> dict[str, Any]:
    """What a row is made of beside its settings, as its record holds it: hashes of the prepared data and of the split,
    the versions of system and evaluator, and what the system reads, by version or by hash: encoders, the replies that
    were recorded for it, and the pools that they belong to. Raises StudyError: a file is not there."""
    dataset, name, model = str(config.dataset.name), str(config.system.name), config.system.model
    split = _hash_required(paths.splits(dataset) / f"{config.protocol.name}.parquet", dataset)[:16]
    versions = read_versions()
    version = versions[name] if name in versions else _of_variant(config, versions)
    reads = {encoder: ENCODERS[encoder]() for encoder in version.encoders}
    files = {"replies": cassette(dataset, name)} if model.get("endpoint") else {}
    files |= {"pools": file_of(dataset)} if files or model.get("_target_") == POOLED else {}
    reads |= {kind: _file_hash(file) if file.exists() else "none" for kind, file in files.items()}
    made_of = {"version": version.version, "evaluator": versions[EVALUATOR].version, "reads": reads}
    return made_of | {"data": data_hash(dataset), "split": split}


def _of_variant(config: DictConfig, versions: Mapping[str, Version]) -> Version:
    """The version of a system without reference scores, such as a variant named on the command line: the highest of the
    systems of the same class; it may read what one of them reads."""
    target = config.system.model.get("_target_")
    same = [versions[name] for name in choices("system") if name in versions and _target(name) == target]
    encoders = set[str]().union(*(version.encoders for version in same)) if same else ENCODERS
    return Version(max((version.version for version in same), default=0), tuple(sorted(encoders)))


@lru_cache(maxsize=512)
def _target(system: str) -> str:
    return str(system_settings(system)["model"].get("_target_"))


def row_key(config: DictConfig) -> str:
    """A short hash of all that decides a row. The list of seeds is left out, so that adding a seed keeps the others;
    neither a move of a class nor a key of `DEFAULTS` or `GONE` changes it."""
    settings = normal_settings(plain(config))
    del settings["seeds"]
    kind = str(settings["model"]["_target_"]).rpartition(".")[2]
    return short_hash([_stable(settings) | {"class": kind}, identity(config)])


def _stable(value: Any, member: bool = False) -> Any:
    """A normal form without names of classes and keys that hold their value of `DEFAULTS`, and with those of `GONE`;
    members of a fusion never had these."""
    if isinstance(value, list):
        return [_stable(item, member) for item in value]
    if not isinstance(value, dict):
        return value
    target = str(value.get("_target_"))
    left_out = [("_target_", target), *DEFAULTS.get(target, {}).items()]
    full = ({} if member else GONE.get(target, {})) | value
    settings = {key: item for key, item in full.items() if (key, item) not in left_out}
    return {key: _stable(item, member or key == "members") for key, item in settings.items()}


def data_hash(dataset: str) -> str:
    """A hash of the prepared tables of a data set. Raises StudyError: one is missing."""
    return short_hash(
        [_hash_required(paths.prepared(dataset) / f"{part}.parquet", dataset) for part in datasets.PREPARED]
    )


def _hash_required(path: Path, dataset: str) -> str:
    fix = f"run: study fetch, study prepare and study split, each with dataset={dataset}"
    return _file_hash(require_file(path, fix, "a file that decides the run is missing"))


def _file_hash(path: Path) -> str:
    """The SHA-256 of a file, computed once a process while the file stays as it is."""
    state = path.stat()
    return _hash_file(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=256)
def _hash_file(path: Path, _changed: int, _size: int) -> str:
    return sha256(path)


def short_hash(value: Any) -> str:
    """The first 16 hex digits of the SHA-256 of a value as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
