"""Ends `make lock`: takes out of the resolver's list of hashed packages what is not installed by it."""

import re
from pathlib import Path

LOCK = Path("requirements.txt")
# torch is installed in a step of its own, so that a processor-only build can be taken, which needs nothing of CUDA.
LEFT_OUT = re.compile(r"#|(nvidia|cuda|triton|torch=)")
RAY = 'ray==2.6.3 ; python_version < "3.12"'  # RecBole takes no later one, and only those run on Python 3.12


def main() -> None:
    """Rewrite the lock."""
    blocks = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").strip())
    kept = [re.sub(r"^ray==2\.6\.3(?= \\)", RAY, block) for block in blocks if not LEFT_OUT.match(block)]
    heading = "# The exact lock, made by `make lock` from pyproject.toml; torch comes before it."
    LOCK.write_text("\n".join([heading, *kept]) + "\n", encoding="utf-8")


main()
