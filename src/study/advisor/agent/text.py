"""Strangers' text made fit to be shown, linked and compared. It is never executed, rendered or trusted."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

# Control, format (zero-width, direction, tag characters), surrogate, private and unassigned characters: invisible, or
# able to change how their neighbours look.
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
# One CJK ideograph, or a run of other letters, or a run of digits; so snake_case and kebab-case fall apart too.
WORD = re.compile(r"[\u4e00-\u9fff]|[^\W\d_\u4e00-\u9fff]+|\d+")
# Endings of inflection: "queries", "queried"; "matches", "indexes".
IES = re.compile(r"(?<=\w\w)ie[sd]\Z")
PLURAL = re.compile(r"(?<=\w)(ss|sh|ch|x|zz)es\Z")
VOWEL = re.compile("[aeiouy]")
# Marks that stand on the letter before them. At most two stay: towers of them cover the lines around.
MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]"
TOWER = re.compile(f"({MARK}{{2}}){MARK}+")
LONGEST_LINK = 2_000
# What a link may hold; anything else could leave its place when it is pasted into a shell or a document.
LINK = re.compile(r"https?://[A-Za-z0-9.-]+(?::\d{1,5})?(?:/[A-Za-z0-9._~/%+@=&?#:,-]*)?\Z")
# A repository that can be put behind `git clone`: owner and name, nothing else.
REPOSITORY = re.compile(r"https://[A-Za-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*/?\Z")
# What Markdown and its common extensions give a meaning.
PUNCTUATION = re.compile(r"([\\`*_{}\[\]<>()#+.!|~&$:@=-])")


# scikit-learn's English stop words (BSD licence), whose import takes a second.
STOP_WORDS = frozenset(Path(__file__).with_name("stop_words.txt").read_text(encoding="utf-8").split())


def plain(text: str, limit: int | None = None) -> str:
    """`text` in one line without invisible characters, cut after `limit` characters (the cut is marked)."""
    if text.isascii() and text.isprintable():
        visible = text
    else:
        letters = (" " if letter.isspace() else letter for letter in text)
        visible = "".join(letter for letter in letters if unicodedata.category(letter) not in INVISIBLE)
        visible = TOWER.sub(r"\1", visible)
    line = " ".join(visible.split())
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def quoted(text: str, limit: int | None = None) -> str:
    """A stranger's words between quotation marks that they cannot close."""
    return f"“{plain(text, limit).replace('“', '').replace('”', '').replace(chr(34), '')}”"


def safe_link(url: str) -> str | None:
    """`url` if it is an ordinary http(s) address in ASCII without a user name, else None."""
    url = url.strip()
    if len(url) > LONGEST_LINK or not LINK.match(url):
        return None
    try:
        host = urlsplit(url).hostname
    except ValueError:
        return None
    return url if host and "." in host and not host.startswith((".", "-")) else None


def clone_address(url: str, hosts: Iterable[str]) -> str | None:
    """`url` if it is the address of one repository on one of the `hosts`, else None."""
    link = safe_link(url)
    if link is None or not REPOSITORY.match(link) or urlsplit(link).hostname not in set(hosts):
        return None
    return link.rstrip("/")


def escape_markdown(text: str) -> str:
    """`text` such that Markdown shows every character as it stands."""
    return PUNCTUATION.sub(r"\\\1", text).replace("\\&", "&amp;").replace("\\<", "&lt;").replace("\\>", "&gt;")


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """A word without the ending of a plural."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


@lru_cache(maxsize=20_000)
def root(word: str) -> str:
    """A word in lower case without the endings of inflection: "retrieves", "retrieved" and "retrieving" are alike.
    Endings that make another word stay ("retrieval", "retriever")."""
    word = PLURAL.sub(r"\1", IES.sub("y", word.lower()))
    word = stem(word)
    for ending in ("ing", "ed"):
        left = word.removesuffix(ending)
        if left != word and len(left) > 2 and VOWEL.search(left) and not (ending == "ed" and left.endswith("e")):
            doubled = len(left) > 3 and left[-1] == left[-2] and left[-1] not in "aeiouslz"
            word = left[:-1] if doubled else left
            break
    return word.removesuffix("e") if len(word) > 3 else word


@lru_cache(maxsize=4_096)
def content_words(text: str, filler: frozenset[str] = frozenset()) -> dict[str, str]:
    """The distinct words of `text` that carry content, in order of appearance: singular form -> word as it stands. Both
    are in lower case; "YouTube" is one word. Do not change the result: it is kept for the next call."""
    found: dict[str, str] = {}
    empty = STOP_WORDS | filler
    for word in WORD.findall(unicodedata.normalize("NFKC", text).lower()):
        if len(word) > 1 and word not in empty and stem(word) not in empty:
            found.setdefault(stem(word), word)
    return found


@lru_cache(maxsize=4_096)
def phrase(*texts: str) -> re.Pattern[str]:
    """A pattern for any one of the phrases where it stands alone, the longest first: 'C' is not in 'C++' or 'Cobol'."""
    longest_first = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile(rf"(?<![\w+#])(?:{'|'.join(map(re.escape, longest_first))})(?![\w+#])", re.IGNORECASE)
