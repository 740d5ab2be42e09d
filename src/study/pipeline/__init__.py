"""The stages that `dvc repro` runs, one function per stage."""
