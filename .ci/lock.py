"""Ends `make lock`: what the resolver's list of hashed packages lacks, and what the study does not install."""

import re
from pathlib import Path

LOCK = Path("requirements.txt")
# Only the CUDA build of torch asks for these; `make setup` installs torch first, so that a processor-only build stays.
LEFT_OUT = re.compile(r"(nvidia|cuda|triton)\b")
# The processor-only build that torch's own index has for Python 3.11 on Linux, beside those of the Python Package Index.
CPU = "    --hash=sha256:6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
RAY = 'ray==2.6.3 ; python_version < "3.12"'  # RecBole takes no later one, which alone runs on Python 3.12


def main() -> None:
    """Rewrite the lock."""
    blocks = re.split(r"\n(?=\S)", LOCK.read_text(encoding="utf-8").strip())
    kept = [block for block in blocks if not LEFT_OUT.match(block) and not block.startswith("#")]
    kept = [re.sub(r"^ray==2\.6\.3(?= )", RAY, block) for block in kept]
    kept = [block + " \\\n" + CPU if block.startswith("torch==") else block for block in kept]
    heading = "# The exact lock, made by `make lock` from pyproject.toml."
    LOCK.write_text("\n".join([heading, *kept]) + "\n", encoding="utf-8")


main()
