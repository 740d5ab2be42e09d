"""Language models, quantisers and trainings in toy sizes."""

from baselines.generative.causal import LlamaSize
from baselines.generative.quantisation import Quantiser
from baselines.generative.seq2seq import T5Size
from baselines.training import Optimisation

T5 = T5Size(width=32, feed_forward=64, heads=2, head_width=16, layers=1, dropout=0.0)
LLAMA = LlamaSize(width=32, feed_forward=64, heads=2, layers=1)


def steps(epochs, batch_size=16, learning_rate=1e-2, **changes):
    return Optimisation(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **changes)


def codes(levels, learning_rate=1e-3):
    return Quantiser(levels=levels, codes=8, hidden=(16,), width=8, training=steps(20, 64, learning_rate))
