"""Run many jobs of the bridge in one process, since starting RecBole takes longer than training on a toy.

``python recbole_batch.py FOLDER... --check FOLDER... --inspect FOLDER...`` trains each folder's job, and prints as JSON
how far our short cuts are from RecBole's own code for the folders after ``--check``, and what the untrained graph
models of the folders after ``--inspect`` make of their embeddings.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def check() -> dict[str, float]:
    """Largest differences of the model in the working folder: its adjacency matrix, its scores."""
    import torch
    from recbole.data.interaction import Interaction
    from recbole.utils import get_model

    from baselines.recbole_bridge import score
    from baselines.recbole_runner import ITEM, USER, Training

    job = json.loads(Path("job.json").read_text())
    training = Training(job)
    training.trainer._train_epoch(training.loader, 0)
    learned, said = training.learned(), {}
    if hasattr(training.model, "get_norm_adj_mat"):
        theirs = get_model(job["model"]).get_norm_adj_mat(training.model).to_dense()
        said["adjacency"] = float((training.model.get_norm_adj_mat().to_dense() - theirs).abs().max())
    pairs = torch.cartesian_prod(training.users, training.items)
    with torch.no_grad():
        theirs = training.model.predict(Interaction({USER: pairs[:, 0], ITEM: pairs[:, 1]})).view(job["n_tasks"], -1)
        ours = score(learned, learned["tasks"])
    said["scores"] = float(((torch.sigmoid(ours) if job["model"] == "NeuMF" else ours) - theirs).abs().max())
    said["spread"] = float(theirs.std())
    return said


def inspect() -> dict[str, Any]:
    """Embeddings and outputs of the untrained model in the working folder, tasks before servers, by row number.

    NGCF has E = [[1, 0], [0, 1], [1, 1], [2, 0], [0, 0]], W_1 = I, W_2 = -2 I and no bias; ``linear`` is its layer with
    W_2 = 0.
    ``losses`` are those of the first batch by the model and by BPR-MF with the same embeddings.
    """
    import torch

    from baselines.recbole_runner import Training

    job = json.loads(Path("job.json").read_text())
    training = Training(job)
    model, tasks, servers = training.model, training.users, training.items
    said: dict[str, Any] = {}
    with torch.no_grad():
        if job["model"] == "NGCF":
            model.user_embedding.weight[tasks] = torch.eye(2)
            model.item_embedding.weight[servers] = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]])
            (layer,) = model.GNNlayers
            for part, factor in ((layer.linear, 1.0), (layer.interActTransform, 0.0)):
                part.weight.copy_(factor * torch.eye(2))
                part.bias.zero_()
            rows = torch.cat([tasks, model.n_users + servers])
            said["linear"] = layer(model.norm_adj_matrix, model.eye_matrix, model.get_ego_embeddings())[rows].tolist()
            layer.interActTransform.weight.copy_(-2 * torch.eye(2))
        learned = training.learned()
        own = (model.user_embedding.weight[tasks], model.item_embedding.weight[servers])
        said["embeddings"] = torch.cat(own).tolist()
        said["learned"] = torch.cat([learned["tasks"], learned["servers"]]).tolist()
        if job["model"] == "LightGCN":
            other = Training(job | {"model": "BPR"}).model
            other.user_embedding.weight.copy_(model.user_embedding.weight)
            other.item_embedding.weight.copy_(model.item_embedding.weight)
            batch = next(iter(training.loader))
            said["losses"] = [float(each.calculate_loss(batch)) for each in (model, other)]
    return said


def main() -> None:
    place, last = sys.argv.index("--check"), sys.argv.index("--inspect")
    trained, checked, inspected = sys.argv[1:place], sys.argv[place + 1 : last], sys.argv[last + 1 :]
    sys.argv = sys.argv[:1]
    from baselines import recbole_runner

    recbole_runner.restore_aliases()
    for folder in trained:
        os.chdir(folder)
        recbole_runner.main(Path("job.json"))
    said: dict[str, Any] = {"differences": {}, "inspected": {}}
    for kind, folders, ask in (("differences", checked, check), ("inspected", inspected, inspect)):
        for folder in folders:
            os.chdir(folder)
            said[kind][Path(folder).parent.name] = ask()
    print(json.dumps(said))


if __name__ == "__main__":
    main()
