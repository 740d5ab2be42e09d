"""Words, identifiers and users as tokens, as OpenP5 has them: the tokens of a word stay together."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.generative.indexing import Identifier
from baselines.generative.text import BytePairs, Vocabulary

Word = tuple[int, ...]  # the tokens of one word
Reading = tuple[list[int], list[int]]  # tokens, and the number of the word that each belongs to


class Speller:
    """Turns words, identifiers and users into tokens.

    Args:
        vocabulary: of ordinary words.
        items: identifiers, whose symbols get tokens of their own after those of the vocabulary.
        names: words that stand in every prompt and answer, such as ``item_``.

    A published vocabulary spells digits and names itself, in whatever pieces it has, as the original does. With one
    learned here each digit and each name is a token, which no other text has.
    """

    def __init__(self, vocabulary: Vocabulary, items: Sequence[Identifier], names: Sequence[str]) -> None:
        self.vocabulary, self.small = vocabulary, isinstance(vocabulary, BytePairs)
        symbols = sorted({symbol for item in items for symbol in item if len(symbol) > 1})
        if self.small:
            symbols += [*"0123456789", *names]
        self.symbols = {symbol: vocabulary.size + number for number, symbol in enumerate(symbols)}
        self.size = vocabulary.size + len(symbols)
        self.known: dict[str, Word] = {}

    def word(self, text: str) -> Word:
        """An ordinary word."""
        if text not in self.known:
            self.known[text] = tuple(self.vocabulary.encode(text))
        return self.known[text]

    def name(self, text: str) -> Word:
        """One of the `names`."""
        return (self.symbols[text],) if self.small else self.word(text)

    def named(self, kind: str, identifier: Identifier) -> Word:
        """The word ``item_<identifier>`` or ``user_<number>``."""
        if not self.small and all(len(symbol) == 1 for symbol in identifier):
            return self.word(f"{kind}_{''.join(identifier)}")
        return (*self.name(f"{kind}_"), *(self.symbols[symbol] for symbol in identifier))


def flatten(words: Sequence[Word], limit: int) -> Reading:
    """The first `limit` tokens of the words, and for each token the number of its word, from 1."""
    pairs = [(token, number) for number, word in enumerate(words, start=1) for token in word][:limit]
    return [token for token, _ in pairs], [number for _, number in pairs]
