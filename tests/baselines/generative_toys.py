"""Language models, quantisers and trainings in toy sizes."""

from baselines.generative.quantisation import Quantiser
from baselines.generative.seq2seq import T5Size
from baselines.lc_rec import LlamaSize
from baselines.training import Schedule

T5 = T5Size(width=32, feed_forward=64, heads=2, head_width=16, layers=1, dropout=0.0)
LLAMA = LlamaSize(width=32, feed_forward=64, heads=2, layers=1)


def steps(epochs, batch_size=16, learning_rate=1e-2, **changes):
    usual = {"warm_up": 0.05, "decay": "cosine", "clip": 1.0, "evaluations": 5, "validation_tasks": 300}
    return Schedule(**{**usual, "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, **changes})


def codes(levels, learning_rate=1e-3):
    return Quantiser(levels=levels, codes=8, hidden=(16,), width=8, training=steps(20, 64, learning_rate))
