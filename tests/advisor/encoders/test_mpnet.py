"""all-mpnet-base-v2 in numpy against the published implementation, with a small network of random weights."""

import numpy as np
import pytest
import torch
import yaml
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MPNetConfig, MPNetModel

from study.advisor.encoders import fetched, mpnet
from study.advisor.encoders.numpy_transformer import Transformer
from study.base import paths
from study.base.errors import StudyError

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
    drawn = np.random.default_rng(5)
    # The longest text reaches the buckets of far tokens and is cut.
    texts = [" ".join(f"w{word}" for word in drawn.integers(3, WORDS, length)) for length in (1, 9, 170, 500)]
    own = Transformer.read(folder, mpnet.LONGEST)
    found = own.embed(texts)
    for text, vector in zip(texts, found, strict=True):
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
    fetched.place("mpnet").mkdir(parents=True)
    for name in files:
        (fetched.place("mpnet") / name.removeprefix("m/")).write_bytes(
            (network[0] / name.removeprefix("m/")).read_bytes()
        )
    with pytest.raises(StudyError, match="is another one"):
        mpnet.encode(["a text"])
