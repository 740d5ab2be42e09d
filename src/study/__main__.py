"""`python -m study`."""

from study.cli import main

main()
