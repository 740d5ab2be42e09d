"""Vectors for a program that answers at once: torch is loaded only where many new texts are embedded."""

from __future__ import annotations

from collections.abc import Sequence

from study.advisor.arrays import FloatArray
from study.advisor.encoders import sentence
from study.advisor.encoders.endpoint import Embedder, MiniLm, configured_embedder

FEW = 100  # texts for which it does not pay to load torch


class QuickMiniLm(MiniLm):
    """MiniLM in numpy for few texts."""

    def encode(self, texts: Sequence[str], *, store: bool = True) -> FloatArray:
        """Shape (len(texts), 384); as `MiniLm` up to rounding."""
        model = sentence.WITHOUT_TORCH["minilm"] if len(texts) <= FEW else "minilm"
        return sentence.encode(texts, model=model, store=store)


def quick_embedder() -> Embedder:
    """The configured embedder; of MiniLM the form that needs no torch for few texts."""
    chosen = configured_embedder()
    return QuickMiniLm() if isinstance(chosen, MiniLm) else chosen
