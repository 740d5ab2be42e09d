"""The networks of GDSRec: attention over rated entries, and the predictor of a deviation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from baselines.published.deviations import LEVELS


class Aggregation(nn.Module):
    """tanh(W sum_m a_m x_m + b) with x_m = MLP([e_m; e_deviation]) and a = softmax(MLP([x_m; owner]))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.opinion = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width))
        self.attention = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))
        self.output = nn.Linear(width, width)

    def forward(self, owner: Tensor, entries: Tensor, deviations: Tensor, valid: Tensor) -> Tensor:
        """What the lists say of their owners.

        Args:
            owner: vectors of the owners, shape (b, d).
            entries: vectors of the entries, shape (b, c, d).
            deviations: vectors of their deviations, shape (b, c, d).
            valid: which entries are no padding, shape (b, c).

        Returns: shape (b, d); the same for all owners without entries.
        """
        x = self.opinion(torch.cat([entries, deviations], dim=2))
        owners = owner[:, None, :].expand_as(x)
        logits = self.attention(torch.cat([x, owners], dim=2)).squeeze(2).masked_fill(~valid, -torch.inf)
        # A row without entries would be 0 / 0.
        weights = torch.softmax(logits.masked_fill(~valid.any(dim=1, keepdim=True), 0.0), dim=1) * valid
        result: Tensor = torch.tanh(self.output((weights[:, :, None] * x).sum(dim=1)))
        return result


class Network(nn.Module):
    """Tables of tasks, servers and deviations, shared by three aggregations; one predictor.

    Args:
        spread: standard deviation of the starting tables.
    """

    def __init__(self, n_tasks: int, n_servers: int, width: int, spread: float = 0.1) -> None:
        super().__init__()
        # From large tables on, the predictor learns pairs by heart before the tables have moved.
        self.tasks = nn.Parameter(torch.randn(n_tasks, width) * spread)
        self.servers = nn.Parameter(torch.randn(n_servers, width) * spread)
        self.deviations = nn.Parameter(torch.randn(LEVELS, width) * spread)
        self.task_side, self.server_side, self.friend_side = (Aggregation(width) for _ in range(3))
        self.predictor = nn.Sequential(
            nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )
        for module in self.modules():
            # torch's default shrinks the signal in every layer, until the product of task and server, which alone tells
            # pairs apart, is too small to learn from: on two blocks of tasks and servers the loss stays where it is.
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, gain=nn.init.calculate_gain("tanh"))
                nn.init.zeros_(module.bias)

    def aggregate(
        self, side: str, rows: Tensor, entries: Tensor, deviations: Tensor, *, zero_is_padding: bool = False
    ) -> Tensor:
        """h (side ``task``), z (``server``) or y (``friend``) of `rows`.

        Args:
            rows: shape (b,).
            entries: rows of the other kind, below 0 for padding, shape (b, c).
            deviations: 0 to 4, shape (b, c).
            zero_is_padding: the vector of deviation 0 is the zero vector, a fault of the reference programs.

        Returns: shape (b, d).
        """
        own, other = (self.servers, self.tasks) if side == "server" else (self.tasks, self.servers)
        block = {"task": self.task_side, "server": self.server_side, "friend": self.friend_side}[side]
        vectors = embedding(deviations, self.deviations)
        if zero_is_padding:
            vectors = vectors * (deviations > 0)[:, :, None]
        result: Tensor = block(embedding(rows, own), embedding(entries.clamp(min=0), other), vectors, entries >= 0)
        return result

    def predict(self, left: Tensor, servers: Tensor) -> Tensor:
        """phi(u, z): the deviation that is expected, shape of `left` without the last axis."""
        result: Tensor = self.predictor(torch.cat([left, servers], dim=-1)).squeeze(-1)
        return result

    def predict_all(self, left: Tensor, servers: Tensor) -> Tensor:
        """phi of every pair, shape (len(left), len(servers)); its first layer is a sum of two parts."""
        first, *rest = self.predictor
        own, others = first.weight.split(left.shape[1], dim=1)  # type: ignore[operator]
        one, other = left @ own.T + first.bias, servers @ others.T
        finish = nn.Sequential(*rest)
        return (
            torch.stack([finish(row + other).squeeze(1) for row in one]) if len(one) else one.new_empty(0, len(other))
        )
