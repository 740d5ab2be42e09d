"""Gate "results": whether `results` holds what it held at the base commit, cell by cell.

    python tests/gates/results.py            compare, name every difference, end with 1 if there is one
    python tests/gates/results.py --make     write the digests of the base commit again

Files that stay are compared by the SHA-256 of their bytes. Rows (per-task values, top tens, records) are compared after
reading, row by row, wherever they lie. Of what differs, the base commit's cells are shown.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

BASE = "225550bc"
ROOT = Path(__file__).resolve().parents[2]
DIGESTS = Path(__file__).with_suffix(".csv")
KINDS = ("per_task", "top10", "records")
# A record's fields that the move from a hash of code to data, split, settings and version replaces.
RESTAMPED = {"fingerprint", "data", "split", "version", "evaluator", "reads"}
# Executed notebooks may change; their numbers are those of the tables.
FREE = ("results/*/notebooks/*",)
# What may go, by the feature that goes; every name is a pattern of paths.
GONE = {
    "estimates of GPU hours": ("results/task2mcp/tables/gpu_hours.csv", "results/task2mcp/records/gpu_hours.json"),
    "load test of the agent": ("results/task2mcp/tables/agent_load.csv", "results/task2mcp/records/agent_load.json"),
    "sentences of the agent's old trial": ("results/task2mcp/tables/agent_model_sentences.csv",),
    "label mixture models": ("results/task2mcp/audit/mixture*.csv",),
    "task quality": ("results/task2mcp/audit/task_quality*",),
    "codebooks' page": ("results/task2mcp/audit/codebooks.*",),
    "OpenP5's prompt templates": ("results/task2mcp/audit/prompt_templates.*",),
    "diversity of usefulness": (
        "results/task2mcp/usefulness/diversity.*",
        "results/task2mcp/usefulness/cold_servers.*",
    ),
    "records of single tables": (
        *("results/task2mcp/usefulness/judged_*.json", "results/task2mcp/usefulness/navigational_queries.json"),
        *("results/task2mcp/usefulness/choice.json", "results/task2mcp/usefulness/supervision.json"),
        *("results/task2mcp/usefulness/calibration_choice.json", "results/task2mcp/usefulness/reliability.json"),
        *("results/task2mcp/usefulness/risk_coverage.json", "results/task2mcp/usefulness/confidence.json"),
    ),
    "the tuned encoder": ("results/mcpflow/tables/flow_encoder.*",),
    "table of sizes": ("results/livemcpbench/tables/sizes.*",),
    "tables that nothing read": (
        "results/task2mcp/audit/label_use.csv",
        "results/task2mcp/audit/first_uses.csv",
        "results/task2mcp/robustness/random_splits.csv",
    ),
    "answers of `study recommend` beside the ranking alone": (
        "results/task2mcp/answering/answers.*",
        "results/task2mcp/answering/first_answers.*",
    ),
    "learning curves": ("results/task2mcp/usefulness/curves.*",),
    "calibration, which notebook 08 computes from confidence.csv": (
        *("results/task2mcp/usefulness/calibration.csv", "results/task2mcp/usefulness/calibration_choice.csv"),
        *("results/task2mcp/usefulness/reliability.csv", "results/task2mcp/usefulness/risk_coverage.csv"),
    ),
    "what notebook 05 computes itself, or nothing reads": (
        *(
            f"results/task2mcp/audit/{name}.csv"
            for name in ("verdict_summary", "gains", "grouped", "reproduction_pairs")
        ),
        *("results/task2mcp/audit/label*.*", "results/task2mcp/audit/protocol_distances.csv.xz"),
        *("results/task2mcp/audit/protocol_cells.json", "results/task2mcp/robustness/rank_robustness.*"),
    ),
    "tables of tools that nothing quoted": (
        *(f"results/livemcpbench/tables/intent_{name}.csv" for name in ("behaviour", "candidates", "coverage")),
        *("results/livemcpbench/tables/discovery_latency.*", "results/task2mcp/tables/intent_filters.csv"),
        *(f"results/livemcpbench/tables/request_{name}.csv" for name in ("agreement", "executed", "servers")),
        *(f"results/{name}/tables/overall.md" for name in ("apibank", "livemcpbench", "mcpflow")),
        *(f"results/{name}/tables/overall.md" for name in ("mcptoolbench", "mcptools")),
    ),
    "a step's parts, measured again in efficiency.csv": (
        "results/task2mcp/tables/parts.csv",
        "results/task2mcp/records/parts.json",
    ),
    "record of the embedding, now distances.json": ("results/task2mcp/embedding/record.json",),
}
# Path or row ("task2mcp/cold/bm25 per_task") -> why it is another than at the base commit. Patterns are allowed.
EXACT, FAMILIES, ONE, SUMS, ROUTER = (
    "Wilcoxon's p is exact up to 50 differences",
    "families of tests by name",
    "one interval for one mean, that of overall.csv",
    "exact sums in bootstrap means: one more or less in the last digit of limits",
    "router_t2mrec made again on another processor",
)
CORRECTIONS: dict[str, str] = {
    **dict.fromkeys(
        (
            *(f"results/task2mcp/tables/{name}" for name in ("machines.csv", "metrics.csv.xz", "runs.csv")),
            "results/task2mcp/audit/consistency.csv",
            "results/task2mcp/judged/per_task.csv.xz",
            "results/task2mcp/judged/tables/scores.csv",
            "results/task2mcp/usefulness/pareto.csv",
        ),
        "one more system: t2mrec_in_batch_set",
    ),
    "results/task2mcp/cassettes/contribution.jsonl": "100 more replies; every other line as it was",
    "results/task2mcp/usefulness/contribution.csv": "rows `full cards` and `short cards`; `listwise` trained again",
    **dict.fromkeys(
        ("results/task2mcp/tables/efficiency.csv", "results/task2mcp/records/efficiency.json"),
        "seconds measured again, with the present code on a slower machine",
    ),
    "results/task2mcp/tables/agent_model.csv": "T2MAgent anew: another trial",
    "results/task2mcp/records/agent_model.json": "T2MAgent anew: another trial",
    "results/task2mcp/sweeps/*/record.json": "a key says of which settings, data and version a search is",
    "results/task2mcp/robustness/split_fits.parquet": "its fits are keyed by data, split, settings and version",
    "results/task2mcp/tables/cleaning.csv": "without lines on outer white space, all of which count 0",
    "results/task2mcp/tables/overview.csv": "without rows that no page quotes; others as they were",
    "results/task2mcp/tables/metrics.json": "NDCG@10 of every row, for dvc's own commands",
    "results/task2mcp/tables/overall.*": ONE,
    "results/task2mcp/tables/significance.csv": f"{FAMILIES}; {SUMS}",
    "results/task2mcp/tables/comparisons.csv": SUMS,
    "results/task2mcp/audit/protocol_cells.csv.xz": "draws by the symmetric root of the covariance",
    "results/livemcpbench/tables/intent_weights.csv": SUMS,
    "results/mcpflow/tables/flow_diversity.csv": SUMS,
    "results/livemcpbench/tables/router.csv": ROUTER,
    "results/livemcpbench/tables/metrics.csv.xz": ROUTER,
    "results/livemcpbench/per_query.csv.xz": ROUTER,
    "results/livemcpbench/records.jsonl": ROUTER,
    "results/task2mcp/ablation/table4.csv": f"{FAMILIES}; {ONE}",
    "results/task2mcp/ablation/by_group.csv": f"{EXACT}; {FAMILIES}",
    "results/task2mcp/judged/tables/threats.csv": "topics without a core server, by part; every other row as it was",
    "results/task2mcp/judged/croissant.json": "mlcroissant writes it: keys in its order, one-item lists as their item; "
    "isBasedOn is in the description, isLiveDataset went",
    "results/task2mcp/usefulness/*.json": "one record an analysis, its settings by class",
    "results/task2mcp/usefulness/judged_*": f"{EXACT}; {FAMILIES}",
    "results/task2mcp/audit/verdict*": ONE,
    "results/task2mcp/audit/feasibility.csv": "one more system: t2mrec_in_batch_set; readings of the columns that "
    "nothing shows went",
    "results/task2mcp/audit/copying.csv.xz": f"{SUMS}; rows of systems that were made after the table "
    "(t2mrec_llm_local*, t2mrec_same_training, label_ranker_plain), without columns that nothing reads; else as it was",
    "results/task2mcp/audit/protocol_inference.csv": "without columns that nothing reads; draws as protocol_cells",
    "results/task2mcp/audit/reference_bugs.csv": "without the columns state and no_server; else as it was",
    "results/task2mcp/audit/*.json": "one record an analysis, its settings by class",
    "results/livemcpbench/tables/significance.csv": f"{EXACT}; {ROUTER}",
    "results/mcptools/tables/significance.csv": EXACT,
    "results/apibank/tables/significance.csv": EXACT,
    "results/mcpflow/tables/significance.csv": EXACT,
    "results/mcptoolbench/tables/significance.csv": EXACT,
}
# Beginning of a path -> how it began at the base commit.
MOVED = {"results/task2mcp/tuned/": "results/task2mcp/sweeps/"}
MOVED |= {"results/task2mcp/usefulness/stuffing.": "results/task2mcp/reranking/stuffing."}
MOVED |= {
    f"results/task2mcp/usefulness/{name}.": f"results/task2mcp/answering/{name}."
    for name in ("filtered", "fit", "prior")
}
# Path -> why it is new. Patterns are allowed.
NEW: dict[str, str] = {
    "task2mcp/cold/t2mrec_in_batch_set *": "row of eq. 9 over the set of a batch's servers",
    "results/task2mcp/pools.*": "pools of the rows with recorded replies",
    "results/task2mcp/audit/protocols.json": "one record an analysis",
    "results/task2mcp/robustness/variance.json": "one record an analysis",
    "results/task2mcp/ablation/parts.json": "record of the ablation's tables",
    "results/task2mcp/embedding/distances.json": "record.json, with a key of what was trained",
    "results/task2mcp/usefulness/*.json": "one record an analysis",
    "results/livemcpbench/router_t2mrec.parquet": "server scores of the router's trained stage",
    "results/task2mcp/sweeps/optima.*": "verdicts of RQ3, which stood in a notebook alone",
    "results/task2mcp/sweeps/wo_cl_passes/*": "w/o CL of the program with up to 16 passes",
}


def digest(frame: pd.DataFrame, keys: list[str]) -> str:
    """A digest of a table's cells, whatever the order of rows and columns and the width of the numbers."""
    frame = frame.reindex(columns=[*keys, *sorted(set(frame.columns) - set(keys))]).sort_values(keys)
    hashed = hashlib.sha256(" ".join(map(str, frame.columns)).encode())
    for name in frame.columns:
        kind = "int64" if name in keys or name == "server_id" else "float64"
        hashed.update(frame[name].to_numpy(kind).tobytes())
    return hashed.hexdigest()[:16]


def canonical(record: dict[str, Any]) -> dict[str, Any]:
    """A record without the fields that are replaced."""
    return {key: value for key, value in record.items() if key not in RESTAMPED}


def row_digest(kind: str, content: Any) -> str:
    """A digest of one part of a row."""
    if kind == "records":
        return hashlib.sha256(json.dumps(canonical(content), sort_keys=True).encode()).hexdigest()[:16]
    return digest(content, ["seed", "task_id"] if kind == "per_task" else ["seed", "task_id", "rank"])


def read_rows(root: Path) -> dict[str, Any]:
    """Every part of every row below `root`/results, from single files and from long ones: "dataset/protocol/system
    kind" -> table or record. Raises ValueError: a part is there twice."""
    rows: dict[str, Any] = {}

    def add(path: Path, system: str, kind: str, content: Any) -> None:
        parts = path.relative_to(root / "results").parts
        key = f"{parts[0]}/{parts[-2]}/{system} {kind}"
        if key in rows:
            raise ValueError(f"{key} is there twice, the second time in {path}")
        rows[key] = content

    for path in sorted(root.glob("results/*/per_task/*/*.csv.xz")):
        add(path, path.name.removesuffix(".csv.xz"), "per_task", pd.read_csv(path))
    for path in sorted(root.glob("results/*/top10/*/*.parquet")):
        add(path, path.stem, "top10", pd.read_parquet(path))
    for path in sorted(root.glob("results/*/records/*/*.json")):
        add(path, path.stem, "records", json.loads(path.read_text(encoding="utf-8")))
    for path in sorted(root.glob("results/*/rows/*/*/records.jsonl")):
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            record = json.loads(line)
            add(path, record["system"], "records", record)
    for kind in ("per_task", "top10"):
        for path in sorted(root.glob(f"results/*/rows/*/*/{kind}.parquet")):
            # Of a file with several systems, each has the columns in which it has values.
            for system, frame in pd.read_parquet(path).groupby("system", observed=True):
                add(path, str(system), kind, frame.drop(columns="system").dropna(axis=1, how="all"))
    return {key: value for key, value in rows.items() if not key.startswith("synthetic/")}


def digests(root: Path) -> dict[str, str]:
    """Path or row -> digest, of everything below `root`/results but executed notebooks and generated data's."""
    # A top ten of hits alone is empty where there is no hit; a long file then has no line of it.
    rows = {key: content for key, content in read_rows(root).items() if isinstance(content, dict) or len(content)}
    found = {key: row_digest(key.rpartition(" ")[2], content) for key, content in rows.items()}
    listed = subprocess.run(
        ["git", "ls-files", "results"], cwd=root, capture_output=True, text=True, check=False
    ).stdout
    for name in listed.splitlines() or [str(path.relative_to(root)) for path in root.glob("results/**/*.*")]:
        path, parts = root / name, Path(name).parts
        is_row = len(parts) > 4 and (parts[2] in KINDS or parts[2] == "rows")
        if path.is_file() and not is_row and not matching(name, FREE):
            earlier = next((name.replace(new, old, 1) for new, old in MOVED.items() if name.startswith(new)), name)
            found[earlier] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def matching(name: str, patterns: Any) -> bool:
    """Whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def base_tree(folder: Path) -> Path:
    """The base commit's results, unpacked below `folder`."""
    packed = subprocess.run(["git", "archive", BASE, "results"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def cells(path: Path, other: Path) -> str:
    """How two versions of a table differ."""
    try:
        one, two = (pd.read_csv(p, dtype=str, keep_default_na=False) for p in (path, other))
    except (ValueError, OSError):
        return "the bytes differ"
    return compare(one, two)


def compare(one: pd.DataFrame, two: pd.DataFrame) -> str:
    """How two tables differ, `one` the earlier."""
    if list(one.columns) != list(two.columns):
        return f"columns {sorted(set(one.columns) ^ set(two.columns)) or 'in another order'}"
    if len(one) != len(two):
        return f"{len(one)} rows, now {len(two)}"
    one, two = one.reset_index(drop=True), two.reset_index(drop=True)
    differs = (one != two) & ~(one.isna() & two.isna())
    if not differs.to_numpy().any():
        return "the same cells in other bytes"
    row, column = (int(place[0]) for place in differs.to_numpy().nonzero())
    shown = f"row {row}, {one.columns[column]}: {one.iat[row, column]}, now {two.iat[row, column]}"
    return f"{int(differs.to_numpy().sum())} cells, the first {shown}"


def explain(changed: list[str]) -> None:
    """Print for each changed path or row what differs."""
    with tempfile.TemporaryDirectory() as name:
        old_root = base_tree(Path(name))
        old, new = read_rows(old_root), read_rows(ROOT)
        for key in changed:
            if key not in old:
                print(f"  {key}: {cells(old_root / key, ROOT / key)}")
            elif key.endswith(" records"):
                one, two = canonical(old[key]), canonical(new[key])
                names = sorted(k for k in one.keys() | two.keys() if one.get(k) != two.get(k))
                print(f"  {key}: fields {', '.join(names)}")
            else:
                keys = ["seed", "task_id"] + (["rank"] if key.endswith("top10") else [])
                one, two = (frame.sort_values(keys) for frame in (old[key], new[key]))
                same = set(one.columns) == set(two.columns)
                print(f"  {key}: {compare(one, two[one.columns] if same else two)}")


def main() -> int:
    """Compare, or make the digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", action="store_true")
    if parser.parse_args().make:
        with tempfile.TemporaryDirectory() as name, DIGESTS.open("w", newline="\n") as stream:
            csv.writer(stream, lineterminator="\n").writerows(sorted(digests(base_tree(Path(name))).items()))
        return 0
    then = dict(csv.reader(DIGESTS.open()))
    now = digests(ROOT)
    missing = sorted(then.keys() - now.keys())
    unexpected = sorted(key for key in now.keys() - then.keys() if not matching(key, NEW))
    changed = sorted(key for key in then.keys() & now.keys() if then[key] != now[key])
    gone = {key: why for key in missing for why, patterns in GONE.items() if matching(key, patterns)}
    lost = [key for key in missing if key not in gone and not matching(key, CORRECTIONS)]
    corrected = [key for key in changed if matching(key, CORRECTIONS)]
    wrong = [key for key in changed if key not in corrected]
    rows = sum(key.endswith(" records") for key in now)
    files = sum(key.startswith("results/") for key in now)
    print(f"{rows} rows, {files} other files; {len(then)} digests at {BASE}")
    named = {key: next(why for pattern, why in CORRECTIONS.items() if fnmatchcase(key, pattern)) for key in corrected}
    for title, names in (("gone as declared", gone), ("corrections", named)):
        print(f"{title}: {len(names)}", *(f"  {key} ({why})" for key, why in names.items()), sep="\n")
    for title, names in (("MISSING", lost), ("NEW", unexpected), ("CHANGED", wrong)):
        if names:
            print(f"{title}: {len(names)}", *(f"  {key}" for key in names), sep="\n")
    if wrong:
        explain(wrong)
    ok = not (lost or unexpected or wrong)
    print("OK: every cell is what it was" if ok else "DIFFERENT")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
