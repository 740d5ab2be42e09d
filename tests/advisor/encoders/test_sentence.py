"""Text encoders: kept vectors, the packaged model, an endpoint, and both numpy forms against the libraries."""

import logging
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MPNetConfig, MPNetModel

from study.advisor.encoders import choose as embedding
from study.advisor.encoders import fetched, mpnet
from study.advisor.encoders import sentence as encoders
from study.advisor.encoders.choose import EndpointEmbedder, TextVectors
from study.advisor.encoders.numpy_transformer import Transformer
from study.advisor.encoders.sentence import WITHOUT_TORCH, cached, encode, without_torch
from study.base import paths
from study.base.errors import StudyError

pytestmark = pytest.mark.usefixtures("private_cache")


class StandIn:
    """Maps a text to numbers that depend on it alone, and remembers what it was asked."""

    def __init__(self, fail_at=None):
        self.asked, self.fail_at = [], fail_at

    def __call__(self, texts):
        if len(self.asked) == self.fail_at:
            raise KeyboardInterrupt
        self.asked.append(list(texts))
        return np.array([[len(text), sum(map(ord, text)), 0.1] for text in texts], dtype=np.float32)


def run(texts, folder, embed=None, **changes):
    embed = embed or StandIn()
    vectors = cached(texts, embed, **{"identity": "model 1", "dimension": 3, "folder": folder, **changes})
    np.testing.assert_array_equal(vectors, StandIn()([text.encode("utf-8", "replace").decode() for text in texts]))
    return embed.asked


def test_only_new_texts_are_embedded(tmp_path):
    assert run(["a", "bb", "a"], tmp_path) == [["a", "bb"]]
    assert run(["bb", "a"], tmp_path) == []
    assert run(["ccc", "a", "d"], tmp_path) == [["ccc", "d"]]
    assert run(["d", "bb", "ccc", "a"], tmp_path) == []
    assert run(["a"], None) == run(["a"], None) == [["a"]]  # without a folder nothing is kept
    assert run(["x\ud800", "x?"], tmp_path) == [["x?"]]  # lone surrogates are replaced
    assert run(["a"], tmp_path, identity="model 2") == [["a"]]  # another model shares nothing
    assert run(["a"], tmp_path) == []
    vectors = cached([], StandIn(fail_at=0), identity="m", dimension=3, folder=tmp_path)
    assert (vectors.shape, vectors.dtype) == ((0, 3), np.float32)
    # Vectors of another width are made again.
    cached(["w"], lambda texts: np.ones((1, 5), np.float32), identity="model 1", dimension=5, folder=tmp_path)
    assert run(["w"], tmp_path) == [["w"]]


def test_a_stopped_run_keeps_its_finished_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "SHARD", 2)
    with pytest.raises(KeyboardInterrupt):
        run(list("abcdef"), tmp_path, StandIn(fail_at=2))
    assert run(list("abcdef"), tmp_path) == [["e", "f"]]


DAMAGES = {
    "empty": lambda good: b"",
    "cut by one byte": lambda good: good[:-1],
    "not the format": lambda good: b"\xff" * 64,
    "one bit flipped": lambda good: good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
    "key missing": lambda good: good.replace(b'"keys"', b'"kezs"'),
    "checksum missing": lambda good: good.replace(b'"sha256"', b'"sha257"'),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_seen_and_redone(damage, tmp_path, caplog):
    run(["a", "bb"], tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    bad = damage(good)
    assert bad != good
    path.write_bytes(bad)
    with caplog.at_level(logging.WARNING):
        assert run(["a"], tmp_path) == [["a"]]
    assert path.name in caplog.text
    assert run(["a", "bb"], tmp_path) == [["bb"]]
    assert not path.exists()


def test_only_files_that_hold_a_wanted_text_are_read_whole(tmp_path, monkeypatch):
    read, of = [], encoders._read_shard
    monkeypatch.setattr(encoders, "_read_shard", lambda path, width: read.append(path) or of(path, width))
    for text in ("a", "bb", "bb", "ccc"):
        run([text], tmp_path)
    assert len(read) == 1


def test_unknown_and_missing_models_say_what_to_do(monkeypatch):
    with pytest.raises(StudyError, match="unknown text encoder 'bert'"):
        encode(["a"], model="bert")
    monkeypatch.setitem(encoders.PACKAGES, "minilm", "no_such_package")
    encoders._load.cache_clear()
    encoders.folder_of.cache_clear()
    with pytest.raises(StudyError, match="study llm fetch --model minilm"):
        encode(["a"])
    encoders.folder_of.cache_clear()


SENTENCES = ["A tool that queries a PostgreSQL database", "Run SQL statements against a relational data store"]
SENTENCES += ["Render a photograph with ray tracing", "", "word " * 2000]


def test_the_packaged_model_needs_no_network_and_a_batch_changes_a_vector_by_rounding_alone(monkeypatch):
    for owner, name in ((socket.socket, "connect"), (socket, "getaddrinfo")):
        monkeypatch.setattr(owner, name, lambda *_, **__: pytest.fail("a network connection was tried"))
    encoders._load.cache_clear()
    vectors = encode(SENTENCES, store=False)
    assert (vectors.shape, vectors.dtype) == ((5, 384), np.float32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    similarity = vectors @ vectors.T
    assert similarity[0, 1] > 0.4
    assert similarity[0, 1] > similarity[0, 2] + 0.3
    alone = np.concatenate([encode([text], store=False) for text in SENTENCES])
    assert np.abs(vectors - alone).max() < 1e-6
    first = encode(SENTENCES[:2])  # kept ones are read back to the bit
    np.testing.assert_array_equal(encode(SENTENCES[1::-1])[::-1], first)


TEXTS = ["read a PDF and extract all tables", "", "  ", "!!!", "[CLS] <unk> [MASK] [PAD]", "1" * 300, "x\ud800"]
TEXTS += ["word " * 2000, "Ünïcödé ß İ a\u0301b 漢字 🎉 \u200b\x00"]


@given(st.lists(st.text(max_size=80), min_size=1, max_size=3))
@settings(max_examples=15)
@example(TEXTS)
def test_vectors_of_any_texts_are_those_of_sentence_transformers(texts):
    ((torch, numpy),) = WITHOUT_TORCH.items()
    theirs, ours = (encode(texts, model=name, store=False) for name in (torch, numpy))
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_what_is_cut_is_not_read():
    model = without_torch("minilm_numpy")
    # Two of the tokens are those around every text.
    fits = " ".join(["word"] * (model.longest - 2))
    assert not model.cut(fits)
    assert model.cut(fits + " word")
    np.testing.assert_array_equal(model.embed([fits]), model.embed([fits + " and more"]))
    assert np.abs(model.embed([fits]) - model.embed([fits.replace("word word", "other word", 1)])).max() > 1e-3


def test_vectors_from_an_endpoint(server, client, tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "cache", lambda: tmp_path)
    embedder = EndpointEmbedder(client, "e", 2)
    server.script = ["vectors"]
    for _ in range(2):  # the second time from disk
        np.testing.assert_allclose(embedder.encode(["a", "b"]), [[0.8, 0.6], [0, 1]], rtol=1e-6)
    assert [body for _, body, _ in server.seen] == [{"model": "e", "input": ["a", "b"]}]


@pytest.mark.parametrize("fault", ["short_vectors", "zero_vectors", "odd"])
def test_bad_vectors(server, client, fault):
    server.script = [fault]
    with pytest.raises(StudyError, match=r"vectors of shape|not an embeddings reply"):
        EndpointEmbedder(client, "e", 2).encode(["a", "b"], store=False)


def test_the_configured_embedder_is_checked(conf_root):
    file = conf_root / "conf/tools/embedder.yaml"
    stated = {"kind": "endpoint", "base_url": "http://x", "model": "m"}
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | stated))
    with pytest.raises(StudyError, match="without base_url, model or dimension"):
        embedding.configured_embedder()


WORDS = 60


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A folder with a random MPNet of two layers, and the network itself."""
    folder = tmp_path_factory.mktemp("mpnet")
    torch.manual_seed(3)
    shape = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MPNetConfig(**shape, intermediate_size=48, initializer_range=0.5, max_position_embeddings=514)
    whole = MPNetModel(config).eval()
    whole.save_pretrained(folder)
    vocabulary = {"<s>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder, whole


def test_vectors_are_those_of_the_published_implementation(network):
    folder, whole = network
    rng = np.random.default_rng(5)
    # The longest text reaches the buckets of far tokens and is cut.
    texts = [" ".join(f"w{word}" for word in rng.integers(3, WORDS, length)) for length in (1, 9, 170, 500)]
    own = Transformer.read(folder, mpnet.LONGEST)
    vectors = own.embed(texts)
    for text, vector in zip(texts, vectors, strict=True):
        ids = torch.tensor([own.tokenizer.encode(text).ids])
        assert ids.shape[1] <= mpnet.LONGEST
        with torch.no_grad():
            expected = whole(ids).last_hidden_state[0].mean(dim=0).numpy()
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=2e-6)


def test_weights_that_are_missing_or_changed_are_refused(network, tmp_path, monkeypatch):
    monkeypatch.setenv("T2M_ROOT", str(tmp_path))
    conf = paths.conf() / "encoders"
    conf.mkdir(parents=True)
    stated = {"title": "Tiny", "licence": "MIT", "bytes": 1, "sha256": "0" * 64, "wheels": []}
    files = {f"m/{name}": "0" * 64 for name in ("config.json", "tokenizer.json", "model.safetensors")}
    (conf / "mpnet.yaml").write_text(yaml.safe_dump(stated | {"files": files}))
    with pytest.raises(StudyError, match="study llm fetch --model mpnet"):
        mpnet.encode(["a text"])
    fetched.folder_of("mpnet").mkdir(parents=True)
    for name in files:
        shutil.copy(network[0] / Path(name).name, fetched.folder_of("mpnet"))
    with pytest.raises(StudyError, match="is another one"):
        mpnet.encode(["a text"])


def test_equal_texts_have_equal_cosines_wherever_they_stand():
    class Noisy:
        """Like products of matrices: the last digit depends on where a text stands."""

        def encode(self, texts, *, store=True):
            places = np.arange(len(texts), dtype=np.float32)[:, None] * 1e-6
            return np.array([[len(text), 1] for text in texts], np.float32) + places

    vectors = TextVectors(["ab", "c", "ab", "c", "ab"], Noisy())
    assert vectors.texts == ["ab", "c"]
    near = vectors.cosines(["x", "yy"], store=False)
    assert near.shape == (2, 5)
    assert (near[:, [0, 0, 1]] == near[:, [2, 4, 3]]).all()
    assert (near[:, 0] != near[:, 1]).all()
