"""all-MiniLM-L6-v2 in numpy, for the few texts of one request, which must not wait for a training library to load."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import erf
from tokenizers import Encoding, Tokenizer

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class MiniLM:
    """A BERT encoder (Devlin et al. 2019) with mean pooling and L2 normalisation (Reimers & Gurevych 2019).

    The tokens of all texts stand in one array, so nothing is padded and the weights are read once; only attention goes
    text by text. The vectors are those of the library sentence-transformers up to rounding; a test holds both together.
    """

    weights: dict[str, FloatArray]  # arrays by the names of the packaged file, those of linear maps of shape (in, out)
    tokenizer: Tokenizer  # the packaged one, which cuts a text at `longest` tokens
    layers: int  # layers, heads: of the network
    heads: int
    epsilon: float  # of its layer normalisations
    longest: int  # tokens of a text that are read at most

    @classmethod
    def load(cls, package: str) -> MiniLM:
        """Read the model that lies in the folder ``model`` of a Python package."""
        folder = Path(str(package_files(package) / "model"))
        shape, reading = (
            json.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("config.json", "sentence_bert_config.json")
        )
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.enable_truncation(int(reading["max_seq_length"]))
        # The maps of the layers are turned once, (out, in) -> (in, out): products with rows in this order are faster.
        weights = {
            name: np.ascontiguousarray(array.T) if name.startswith("encoder.") and array.ndim == 2 else array
            for name, array in load_file(folder / "model.safetensors").items()
        }
        layers, heads, epsilon = (
            shape[name] for name in ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        )
        return cls(weights, tokenizer, layers, heads, epsilon, int(reading["max_seq_length"]))

    def embed(self, texts: list[str]) -> FloatArray:
        """Sentence vectors, shape (len(texts), d), float32, rows of length 1."""
        if not texts:
            return np.zeros((0, self.weights["embeddings.word_embeddings.weight"].shape[1]), dtype=np.float32)
        tokens = [self._read(text).ids for text in texts]
        ends = np.cumsum([len(own) for own in tokens])
        spans = [slice(end - len(own), end) for own, end in zip(tokens, ends, strict=True)]
        words, places, kinds = (
            self.weights[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")
        )
        standing = np.concatenate([np.arange(len(own)) for own in tokens])
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
        query, key, value = (
            self._linear(states, f"{name}.attention.self.{part}") for part in ("query", "key", "value")
        )
        context = np.concatenate([self._attention(query[span], key[span], value[span]) for span in spans])
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
        attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
        attention /= attention.sum(axis=-1, keepdims=True)
        found: FloatArray = (attention @ value).transpose(1, 0, 2).reshape(tokens, width)
        return found

    def _linear(self, states: FloatArray, name: str) -> FloatArray:
        found: FloatArray = states @ self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return found

    def _normalised(self, states: FloatArray, name: str) -> FloatArray:
        """Layer normalisation: mean 0 and variance 1 of each row, then scaled and shifted."""
        centred = states - states.mean(axis=-1, keepdims=True)
        spread = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(self.epsilon))
        found: FloatArray = centred / spread * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return found
