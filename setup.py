"""Builds the C operators into the package; everything else stands in pyproject.toml.

`kernels/native/build.py` compiles them, as it does at first use in a checkout. The library is
loaded by its path, so one wheel serves every version of Python. Where it cannot be built the
package installs without it, and says so when an operator is first used.
"""

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

NATIVE = Path(__file__).parent / "fp4lab" / "kernels" / "native"
LIBRARY = "fp4lab.kernels.native.libfp4lab"


class BuildLibrary(build_ext):
    """One shared library by the project's own compiler commands."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without the name of a Python version."""
        return f"{fullname.replace('.', '/')}.so"

    def run(self) -> None:
        """An editable checkout compiles at first use, so that edited sources are seen."""
        if not self.inplace:
            super().run()

    def build_extension(self, ext: Extension) -> None:
        """Errors of the compiler leave the library out, also one of an earlier build."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.unlink(missing_ok=True)
        spec = importlib.util.spec_from_file_location("fp4lab_build", NATIVE / "build.py")
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            build.compile_library(target)
        except (OSError, RuntimeError) as error:
            print(f"fp4lab is built without its C operators: {error}", file=sys.stderr)
            raise CompileError(str(error)) from error


class Wheel(bdist_wheel):
    """For any Python 3, on one platform where the wheel has the library."""

    def get_tag(self) -> tuple[str, str, str]:
        """The tag in the wheel's name, which is asked for when everything is built."""
        library = Path(self.get_finalized_command("build_ext").get_ext_fullpath(LIBRARY))
        return "py3", "none", super().get_tag()[2] if library.exists() else "any"


setup(
    ext_modules=[Extension(LIBRARY, sources=[], optional=True)],
    cmdclass={"build_ext": BuildLibrary, "bdist_wheel": Wheel},
)
