"""Sentence encoders in numpy, for the few texts of one request, which must not wait for a training library to load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tokenizers import Encoding, Tokenizer
from tqdm import tqdm

from study.advisor.arrays import FloatArray

BATCH = 16  # texts whose tokens are multiplied together
DISTANCE = 128  # tokens beyond which all distances share a bucket, as in the published MPNet
# Names of MPNet's published file -> those of BERT.
_NAMES = (
    ("attention.attn.q.", "attention.self.query."),
    ("attention.attn.k.", "attention.self.key."),
    ("attention.attn.v.", "attention.self.value."),
    ("attention.attn.o.", "attention.output.dense."),
    ("attention.LayerNorm.", "attention.output.LayerNorm."),
)
_DISTANCES = "encoder.relative_attention_bias.weight"  # MPNet alone has it
_WORDS, _PLACES, _KINDS = (f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type"))
# Of the polynomial that approximates the error function to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26), highest first.
ERF = tuple(map(np.float32, (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592, 0)))


def erf(x: FloatArray) -> FloatArray:
    """The error function, in numpy since SciPy takes longer to load than a request to answer."""
    size = np.abs(x)
    t, series = 1 / (1 + np.float32(0.3275911) * size), np.zeros_like(x)
    for coefficient in ERF:
        series *= t
        series += coefficient
    values: FloatArray = np.copysign(1 - series * np.exp(-size * size), x)
    return values


@dataclass(frozen=True)
class Transformer:
    """BERT (Devlin et al. 2019) or MPNet (Song et al. 2020: a learned bias for the distance of two tokens, no token
    types), with mean pooling and L2 normalisation (Reimers & Gurevych 2019).

    The tokens of some texts stand in one array, so nothing is padded; only attention goes text by text. The vectors are
    those of the library sentence-transformers up to rounding; a test holds both together.
    """

    weights: dict[str, FloatArray]  # arrays by BERT's names, those of linear maps of shape (in, out)
    tokenizer: Tokenizer  # the packaged one, which cuts a text at `longest` tokens
    layers: int  # layers, heads: of the network
    heads: int
    epsilon: float  # of its layer normalisations
    longest: int  # tokens of a text that are read at most

    @classmethod
    def read(cls, folder: Path, longest: int) -> Transformer:
        """The model of a folder with ``config.json``, ``tokenizer.json`` and ``model.safetensors``."""
        shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(longest)
        weights = {}
        with safe_open(folder / "model.safetensors", framework="np") as stored:  # one by one: less memory, and faster
            for name in stored.keys():  # noqa: SIM118 (it is no dictionary)
                array = stored.get_tensor(name)
                for published, local in _NAMES:
                    name = name.replace(published, local)
                # The maps of the layers are turned once, (out, in) -> (in, out): products are faster then.
                turned = name.startswith("encoder.layer") and array.ndim == 2
                weights[name] = np.ascontiguousarray(array.T) if turned else array
        if _DISTANCES in weights:
            # The first place of a text is the third row of the table; the rows before it serve padding.
            weights[_PLACES] = weights[_PLACES][2:]
            weights[_KINDS] = np.zeros((1, shape["hidden_size"]), dtype=np.float32)
        sizes = shape["num_hidden_layers"], shape["num_attention_heads"], shape["layer_norm_eps"]
        return cls(weights, tokenizer, *sizes, longest)

    def embed(self, texts: list[str], *, label: str = "encode") -> FloatArray:
        """Sentence vectors, shape (len(texts), d), float32, rows of length 1. `label`: what a progress bar calls it."""
        # Texts of like length stand together, so that the progress bar tells the truth. More at a time are slower: the
        # system would hand out and take back their large arrays again and again.
        order = np.argsort([len(text) for text in texts], kind="stable")
        vectors = np.zeros((len(texts), self.weights[_WORDS].shape[1]), dtype=np.float32)
        blocks = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        for block in tqdm(blocks, desc=label, unit="batch", disable=None if len(blocks) > 1 else True, leave=False):
            vectors[block] = self._embed([texts[row] for row in block])
        return vectors

    def _embed(self, texts: list[str]) -> FloatArray:
        """Sentence vectors of a few texts, their tokens in one array."""
        tokens = [self._read(text).ids for text in texts]
        ends = np.cumsum([len(ids) for ids in tokens])
        spans = [slice(end - len(ids), end) for ids, end in zip(tokens, ends, strict=True)]
        words, places, kinds = (self.weights[name] for name in (_WORDS, _PLACES, _KINDS))
        standing = np.concatenate([np.arange(len(ids)) for ids in tokens])
        states = self._normalised(words[np.concatenate(tokens)] + places[standing] + kinds[0], "embeddings.LayerNorm")
        for number in range(self.layers):
            states = self._layer(states, spans, f"encoder.layer.{number}")
        means = np.stack([states[span].mean(axis=0) for span in spans])
        vectors: FloatArray = means / np.linalg.norm(means, axis=1, keepdims=True)
        return vectors

    def cut(self, text: str) -> bool:
        """Whether a text is longer than what is read of it."""
        return bool(self._read(text).overflowing)

    def _read(self, text: str) -> Encoding:
        # Lone surrogates (possible in JSON) are no Unicode text, which the tokeniser refuses.
        return self.tokenizer.encode(text.encode("utf-8", "replace").decode())

    def _layer(self, states: FloatArray, spans: list[slice], name: str) -> FloatArray:
        """One transformer layer: states of shape (tokens of all texts, d) to states of the same shape."""
        parts = [self._linear(states, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
        context = np.concatenate([self._attention(*(part[span] for part in parts)) for span in spans])
        read = self._linear(context, f"{name}.attention.output.dense")
        states = self._normalised(states + read, f"{name}.attention.output.LayerNorm")
        inner = self._linear(states, f"{name}.intermediate.dense")
        inner *= np.float32(0.5) * (1 + erf(inner / np.float32(np.sqrt(2))))  # GELU
        return self._normalised(states + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _attention(self, query: FloatArray, key: FloatArray, value: FloatArray) -> FloatArray:
        """Attention within one text, all heads: three arrays of shape (tokens, d) to one."""
        tokens, width = query.shape
        # (tokens, d) -> (heads, tokens, d / heads)
        query, key, value = (part.reshape(tokens, self.heads, -1).transpose(1, 0, 2) for part in (query, key, value))
        logits = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(width // self.heads))
        if (bias := self.weights.get(_DISTANCES)) is not None:
            logits += bias[_buckets(tokens, len(bias))].transpose(2, 0, 1)
        attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        output: FloatArray = (attention @ value).transpose(1, 0, 2).reshape(tokens, width)
        return output

    def _linear(self, states: FloatArray, name: str) -> FloatArray:
        product: FloatArray = states @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return product

    def _normalised(self, states: FloatArray, name: str) -> FloatArray:
        """Layer normalisation: mean 0 and variance 1 of each row, then scaled and shifted."""
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        output: FloatArray = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return output


@cache
def _buckets(tokens: int, number: int) -> NDArray[np.int64]:
    """The bucket of the distance of each pair of places, shape (tokens, tokens).

    Half of the `number` buckets serve later tokens, half the earlier and the same one. Of each half, half hold one
    distance and half a range that grows with it, up to `DISTANCE`.
    """
    places = np.arange(tokens)
    distance = places[:, None] - places[None, :]
    half, exact = number // 2, number // 4
    far = np.abs(distance)
    share = np.log(np.maximum(far, 1) / exact) / np.log(DISTANCE / exact)
    ranged = np.minimum(exact + (share * (half - exact)).astype(np.int64), half - 1)
    buckets: NDArray[np.int64] = np.where(distance < 0, half, 0) + np.where(far < exact, far, ranged)
    return buckets
