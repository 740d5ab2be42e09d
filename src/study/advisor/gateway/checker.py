"""A program that checks calls against JSON Schemas which strangers wrote: ``python -I checker.py SECONDS``.

One check a line of standard input: JSON with ``schema`` and ``arguments``. The answer is a JSON list: the fault's kind
(``arguments`` or ``schema``; empty for none) and its reason. A check of more than SECONDS, be it for a slow pattern or
for references that multiply, ends the program: a thread without Python's lock stops what Python cannot.
No library bounds such references (jsonschema-rs 0.61: over ten seconds for 24 levels of `anyOf`), so this is a
program of its own.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

# The grammar of a format, which no check here reads, takes a second to load; jsonschema goes on without it.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
from jsonschema import Draft202012Validator  # noqa: E402
from jsonschema.exceptions import best_match  # noqa: E402
from jsonschema.validators import extend, validator_for  # noqa: E402
from referencing import Registry  # noqa: E402

MEMORY = 1_000_000_000  # bytes
LONGEST = 300  # characters of a reason
PATTERNED = ("pattern", "patternProperties", "additionalProperties", "unevaluatedProperties")


def tolerant(check: Any) -> Any:
    """The check of a keyword, which says nothing where a pattern is none of Python's: JSON Schema has ECMA-262's."""

    def checked(*arguments: Any) -> Iterator[Any]:
        with suppress(re.error, OverflowError):
            yield from check(*arguments) or ()

    return checked


@cache
def made_tolerant(base: Any) -> Any:
    """A draft's validator with such checks; to make one takes much longer than to check a call."""
    return extend(base, {name: tolerant(base.VALIDATORS[name]) for name in PATTERNED if name in base.VALIDATORS})


def fault(schema: Any, arguments: Any) -> tuple[str, str]:
    """What is at fault and why; the schema, where nothing can be said about the arguments. References lead nowhere
    outside the schema: nothing is fetched."""
    try:
        validator = made_tolerant(validator_for(schema, default=Draft202012Validator))(schema, registry=Registry())
        error = best_match(validator.iter_errors(arguments))
    except RecursionError:
        return "schema", "its references have no end"
    except Exception as broken:  # a stranger's schema may be at fault in any way
        return "schema", f"{type(broken).__name__}: {broken}"[:LONGEST]
    if error is None:
        return "", ""
    path = "/".join(map(str, error.absolute_path))
    return "arguments", f"{f'{path}: ' if path else ''}{error.message}"[:LONGEST]


def main(seconds: str) -> None:
    """Answer line by line."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such module, macOS no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    nowhere = open(os.devnull, "w")  # noqa: SIM115  # as long as the program
    for line in sys.stdin:
        faulthandler.dump_traceback_later(float(seconds), exit=True, file=nowhere)
        try:
            message = json.loads(line)
            answer = fault(message["schema"], message["arguments"])
        except RecursionError:
            answer = "arguments", "they nest too deeply"
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
