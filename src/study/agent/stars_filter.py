"""Least numbers of stars and the catalogue's mark "official", as a message states them."""

from __future__ import annotations

import re

NUMBER = r"(\d[\d,]{0,9}(?:\.\d{1,3})?)\s?([km])?"
STARS = r"\s*(?:github\s+)?stars?\b"
LEAST = r"(?:at least|no (?:fewer|less) than|not (?:fewer|less) than|more than|over|above|min(?:imum)?(?: of)?|>=?|≥)"
MOST = (
    r"(?:(?<!no )(?<!not )(?:fewer|less|lower) than|not? more than|fewer|under|below|at most|not over(?: than)?|up to|"
    r"max(?:imum)?(?: of)?|<=?|≤)"
)
# "at least 100 stars", "100+ stars", "100 stars or more", "stars > 100".
LEAST_STARS = re.compile(
    rf"(?<!\w){LEAST}\s*{NUMBER}\s*\+?{STARS}|\b{NUMBER}\s*(?:\+|or more|and more|plus){STARS}|"
    rf"\b{NUMBER}{STARS}\s+(?:or|and)\s+(?:more|up|above)\b|"
    rf"\bstars?\s*(?::|is|are|must be|should be)?\s*{LEAST}\s*{NUMBER}\b|\bstars?\s*:?\s*{NUMBER}\s*\+",
    re.I,
)
# Largest numbers of stars; the catalogue can be asked for least numbers alone.
MOST_STARS = re.compile(
    rf"(?<!\w){MOST}\s*{NUMBER}{STARS}|\b{NUMBER}{STARS}\s+or\s+(?:fewer|less)\b|"
    rf"\bstars?\s*(?::|is|are|must be|should be)?\s*{MOST}\s*{NUMBER}\b",
    re.I,
)
TIMES = {"": 1, "k": 1_000, "m": 1_000_000}

OFFICIAL = re.compile(r"\bofficial(?:ly)?\b(?:\s+(?:mcp\s+)?servers?)?", re.I)
# A denial in the same clause takes the mark back: "it should not be official", "official or not".
SAME_CLAUSE = r"(?:(?!\b(?:and|but|only|just)\b)[^,.;:!?()]){0,40}?"
NOT_OFFICIAL = re.compile(
    r"\b(?:un|non-?)official(?:\s+(?:mcp\s+)?servers?)?|"
    r"(?:\b(?:i|we|it|they|that|this|you)\s+)?(?:\b(?:should|must|do|does|need|needs|may|can|will|would|is|are)\s+)?"
    r"(?:\b(?:not|never|no|without|neither|whether|dont|doesnt|neednt|isnt)|\b[a-z]+n['’]t)\b"
    rf"(?:\s+(?:only|just|necessarily))?\s{SAME_CLAUSE}\bofficial\b(?:\s+(?:mcp\s+)?servers?)?|"
    r"\bofficial\s+(?:or\s+(?:not|unofficial)|(?:is|are)?\s*not\b|isn['’]t\b|does(?:n['’]t| not) matter)"
    r"(?:\s+(?:needed|required|necessary))?",
    re.I,
)


def stars(match: re.Match[str]) -> int:
    """The number of stars in a match of `LEAST_STARS`: "2.5k" is 2500."""
    number, times = next(pair for pair in zip(match.groups()[::2], match.groups()[1::2], strict=True) if pair[0])
    return int(float(number.replace(",", "")) * TIMES[(times or "").lower()])
