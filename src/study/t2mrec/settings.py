"""The settings of T2MRec, grouped as the paper groups them. Defaults are the paper's (section 5.4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Lexical:
    """Text representation (eq. 4-5).

    Attributes:
        kind: ``tfidf``, or ``minilm`` for the "w/o lexical" variant (dense sentence vectors).
        max_features: size of the vocabulary at most. Not in the paper; the authors' program cuts at 50,000.
        ngrams: shortest and longest word n-gram. Not in the paper; the authors' program takes 1 and 2.
    """

    kind: str = "tfidf"
    max_features: int | None = 50_000
    ngrams: tuple[int, int] = (1, 2)


@dataclass(frozen=True)
class Towers:
    """Semantic encoder (eq. 6-7).

    Attributes:
        enabled: False for the "w/o two-tower" variant, which compares the representations themselves.
        shared: one tower for both sides instead of two.
        hidden, output, layers, dropout: see `study.t2mrec.towers.Tower`.
    """

    enabled: bool = True
    shared: bool = False
    hidden: int = 512
    output: int = 256
    layers: int = 3
    dropout: float = 0.2


@dataclass(frozen=True)
class Training:
    """Contrastive alignment (eq. 9-10).

    Attributes:
        loss: ``info_nce``, or ``bce`` for the "w/o CL" variant.
        symmetric: InfoNCE in both directions (section 5.4), or as eq. 9 writes it.
        temperature: tau.
        learning_rate, weight_decay: of AdamW. The decay is torch's default, as in the authors' program.
        batch_size: tasks per batch; the last batch of an epoch is shorter.
        epochs: passes over the training tasks.
        checkpoint_every: epochs between two checkpoints, from which a killed training goes on.
    """

    loss: str = "info_nce"
    symmetric: bool = True
    temperature: float = 0.07
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    batch_size: int = 256
    epochs: int = 200
    checkpoint_every: int = 50


@dataclass(frozen=True)
class Scoring:
    """Structure, fusion and expansion (eq. 17-22).

    Attributes:
        semantic_weight: alpha_sem of eq. 18.
        category, language, theme: w_cat, w_lan, w_the of eq. 17 ("equal weights").
        expansion: False ranks by the fused score alone.
        anchors: K1. Not in the paper; the authors' program takes 5.
        pool: K2. Not in the paper; the authors' program takes 20.
    """

    semantic_weight: float = 0.9
    category: float = 1 / 3
    language: float = 1 / 3
    theme: float = 1 / 3
    expansion: bool = True
    anchors: int = 5
    pool: int = 20

    @property
    def structure_weights(self) -> tuple[float, float, float]:
        """(w_cat, w_lan, w_the)."""
        return self.category, self.language, self.theme
