"""The one restamp: rows that are current by the hash of code of the base commit get data, split, version and evaluator.

    python tests/gates/restamp.py TREE     TREE: a checkout of the base commit with its .venv and the prepared Task2MCP

The old rule is asked first, with the code of the base commit. Nothing is written unless it holds every row, and every
kept fit on further splits, for current, and the present settings, in normal form, are those of every record.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd

from study.base import paths
from study.base.files import write_parquet, write_text
from study.config.changes import with_tuned_values
from study.config.compose import load, plain
from study.runner import provenance, row_store
from study.runner.identity import identity, row_key

DATASET = "task2mcp"
# Run with the code of the base commit: states of all rows, and fingerprints of the settings of kept fits.
OLD_RULE = """
import json, sys
from study.base import paths
from study.config.compose import load
from study.config.changes import with_tuned_values
from study.evaluation.records import read_record
from study.runner.fingerprint import fingerprint
from study.runner.provenance import state
known = {}
files = sorted((paths.results("task2mcp") / "records").glob("*/*.json"))
rows = {f"{file.parent.name}/{file.stem}": state(read_record(file), known)[0] for file in files}
fits = {}
for cell in json.loads(sys.argv[1]):
    protocol, system = cell.split("/")
    words = [f"system={system}", f"protocol={protocol}", "dataset=task2mcp"]
    fits[cell] = fingerprint(with_tuned_values(load(words)))
print(json.dumps({"rows": rows, "fits": fits}))
"""


def main(tree: Path) -> None:
    """Check by the old rule, then write."""
    fits_file = paths.results(DATASET) / "robustness" / "split_fits.parquet"
    fits = pd.read_parquet(fits_file)
    cells = sorted(set(fits["protocol"] + "/" + fits["system"]))
    command = [str(tree / ".venv/bin/python"), "-c", OLD_RULE, json.dumps(cells)]
    said = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
    old = json.loads(said.splitlines()[-1])
    stale = sorted(row for row, state in old["rows"].items() if state != "no")
    cell = fits["protocol"] + "/" + fits["system"]
    other = sorted(set(cell[fits["fingerprint"] != cell.map(old["fits"])]))
    print(f"{len(old['rows'])} rows, {len(stale)} stale {stale}; {len(fits)} kept fits, {len(other)} stale {other}")
    if stale or other:
        sys.exit(1)
    records = row_store.read_records(DATASET)
    assert {f"{protocol}/{system}" for protocol, system in records} == old["rows"].keys()
    for row, record in records.items():
        config = provenance.todays_config(record)
        assert config is not None, row
        assert not (found := provenance.changed_settings(record, plain(config))), (row, found)
        stamp = identity(config)
        stamped = [(name, stamp[name]) for name in provenance.IDENTITY]
        items = [pair for pair in record.items() if pair[0] not in {"fingerprint", *stamp}]
        place = [key for key, _ in items].index("config")
        records[row] = dict([*items[:place], *stamped, *items[place:]])
    keys = {}
    for name in cells:
        protocol, system = name.split("/")
        keys[name] = row_key(
            with_tuned_values(load([f"system={system}", f"protocol={protocol}", f"dataset={DATASET}"]))
        )
    for file in row_store.long_files(DATASET, "records"):
        own = {name: record for (protocol, name), record in records.items() if protocol == file.parent.name}
        names = [json.loads(line)["system"] for line in file.read_text(encoding="utf-8").splitlines()]
        write_text(file, "".join(f"{json.dumps(own[name], ensure_ascii=False)}\n" for name in names))
    write_parquet(fits_file, fits.assign(fingerprint=cell.map(keys)), packed=True)
    print(f"{len(records)} records restamped")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
