"""Strangers' text made fit to be shown and linked. It is never executed, rendered or trusted."""

from __future__ import annotations

import re
import unicodedata

# Control, format (zero-width, direction, tag characters), surrogate, private and unassigned characters: invisible, or
# able to change how their neighbours look.
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})
# Marks that stand on the letter before them. At most two stay: towers of them cover the lines around.
MARK = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u20d0-\u20ff]"
TOWER = re.compile(f"({MARK}{{2}}){MARK}+")
LONGEST_LINK = 2_000
# What a link may hold: a host with a dot in it and no user; anything else could leave its place when it is pasted into
# a shell or a document.
LINK = re.compile(r"https?://[A-Za-z0-9][A-Za-z0-9-]*\.[A-Za-z0-9.-]*(?::\d{1,5})?(?:/[A-Za-z0-9._~/%+@=&?#:,-]*)?\Z")


def plain(text: str, limit: int | None = None) -> str:
    """`text` in one line without invisible characters, cut after `limit` characters (the cut is marked)."""
    letters = (" " if letter.isspace() else letter for letter in text)
    visible = "".join(letter for letter in letters if unicodedata.category(letter) not in INVISIBLE)
    line = " ".join(TOWER.sub(r"\1", visible).split())
    return line if limit is None or len(line) <= limit else line[: limit - 1].rstrip() + "…"


def safe_link(url: str) -> str | None:
    """`url` if it is an ordinary http(s) address in ASCII without a user name, else None."""
    url = url.strip()
    return url if len(url) <= LONGEST_LINK and LINK.match(url) else None
