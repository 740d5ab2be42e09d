"""Puts the settings, which lie beside the package in the repository, into what is built of it."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithSettings(build_py):
    """The package with ``conf`` inside; an editable installation reads it where it is."""

    def run(self) -> None:
        """Build the package, then copy the settings."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "study" / "conf"
            shutil.copytree(Path(__file__).parent / "conf", target, dirs_exist_ok=True)


setup(cmdclass={"build_py": WithSettings})
