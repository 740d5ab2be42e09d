"""What a sync costs: ``T2M_MIRROR=... python tests/advisor/catalog/measure_sync.py`` writes results/open/sync.csv.

In a new folder the three pinned archives are synced and every text is encoded, once. Then in each round `SHARE` of
toolsdk's descriptions change, and sync and first answer run again, each as a process of its own. The table tells
seconds of the processor (user and system), which other work on the machine hardly changes, beside those of the clock.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from study.advisor.catalog.archives import archive_files
from study.advisor.catalog.settings import Sources
from study.base import paths
from study.base.files import write_csv, write_json
from study.base.paths import MIRROR
from study.evaluation.records import record
from tests.advisor.catalog.sources import pin

SHARE, ROUNDS = 0.01, 3
NAMES = ("toolsdk", "docker", "toolhive")
SYNC = ("catalog", "sync", *(word for name in NAMES for word in ("--source", name)))
ANSWER = ("recommend", "query a PostgreSQL database")


def changed(files, number):
    """The files of toolsdk with other descriptions in one entry of `1 / SHARE`, other entries each round."""
    entries = [name for name in sorted(files) if name.startswith("packages/") and name.endswith(".json")]
    for name in entries[number :: round(1 / SHARE)]:
        value = json.loads(files[name])
        files[name] = json.dumps(value | {"description": f"{value.get('description') or ''} As of round {number}."})
    return files


def measure():
    """Rows of step, round and both seconds."""
    root, rows = Path(tempfile.mkdtemp(prefix="measure_sync.")), []
    environment = os.environ | {"T2M_ROOT": str(root), MIRROR: str(root / "mirror"), "OMP_NUM_THREADS": "1"}

    def step(name, number, words):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-m", "study", *words], env=environment, stdout=subprocess.DEVNULL, check=True)
        after, clock = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
        used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        rows.append({"step": name, "round": number, "processor_s": used, "clock_s": clock})
        print(rows[-1], flush=True)

    try:
        shutil.copytree(paths.conf(), root / "conf")
        settings = Sources.read()
        files = {name: archive_files(settings.archives[name], settings.limits) for name in NAMES}
        for name in NAMES:
            pin(root, root / "mirror", name, files[name])
        step("first sync", 0, SYNC)
        step("first answer", 0, ANSWER)
        for number in range(1, ROUNDS + 1):
            pin(root, root / "mirror", "toolsdk", changed(dict(files["toolsdk"]), number))
            step("answer", number, ANSWER)
            step("sync of changes", number, SYNC)
            step("answer after changes", number, ANSWER)
        step("sync of nothing", ROUNDS, SYNC)
    finally:
        shutil.rmtree(root)
    return pd.DataFrame(rows)


if __name__ == "__main__":
    folder = paths.results("open")
    write_csv(folder / "sync.csv", measure())
    write_json(folder / "sync.json", record(share=SHARE, load=os.getloadavg()[0]))
