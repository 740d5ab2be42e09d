"""Run many jobs of the bridge in one process, since starting RecBole takes longer than training on a toy.

``python recbole_batch.py FOLDER... --check FOLDER... --refused FOLDER`` trains each folder's job, and prints as JSON
how far our scores are from RecBole's own after ``--check``, and why the last job is refused.
"""

import json
import os
import sys
from pathlib import Path


def check() -> dict[str, float]:
    """Largest difference of the scores of the model in the working folder from RecBole's own, and their spread."""
    import torch
    from recbole.data.interaction import Interaction

    from baselines.recbole_bridge import score
    from baselines.recbole_runner import ITEM, USER, Training

    job = json.loads(Path("job.json").read_text())
    training = Training(job)
    training.trainer._train_epoch(training.loader, 0)
    learned, pairs = training.learned(), torch.cartesian_prod(training.users, training.items)
    with torch.no_grad():
        theirs = training.model.predict(Interaction({USER: pairs[:, 0], ITEM: pairs[:, 1]})).view(job["n_tasks"], -1)
        ours = score(learned, learned["tasks"])
    away = (torch.sigmoid(ours) if job["model"] == "NeuMF" else ours) - theirs
    return {"scores": float(away.abs().max()), "spread": float(theirs.std())}


def main() -> None:
    check_at, refused_at = sys.argv.index("--check"), sys.argv.index("--refused")
    trained, checked, refused = sys.argv[1:check_at], sys.argv[check_at + 1 : refused_at], sys.argv[-1]
    sys.argv = sys.argv[:1]
    from baselines import recbole_runner

    recbole_runner.restore_aliases()
    for folder in trained:
        os.chdir(folder)
        recbole_runner.main(Path("job.json"))
    told: dict[str, object] = {}
    for folder in checked:
        os.chdir(folder)
        told[Path(folder).parent.name] = check()
    os.chdir(refused)
    try:
        recbole_runner.main(Path("job.json"))
    except (Exception, SystemExit) as error:
        told["refused"] = str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
