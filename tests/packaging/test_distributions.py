"""The sdist and the wheel hold what they should, and the wheel works without the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import fp4lab

ROOT = Path(__file__).resolve().parents[2]
NOT_SOURCE = shutil.ignore_patterns(
    *(".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.so"),
    *("runs", "build", "dist", "*.egg-info"),
)

pytestmark = pytest.mark.slow


def package_files() -> set[str]:
    """Every file of the package as named from the root, through the links, but what was built."""
    return {
        (Path(folder) / name).relative_to(ROOT).as_posix()
        for folder, _, names in os.walk(ROOT / "fp4lab", followlinks=True)
        for name in names
        if "__pycache__" not in folder and not name.endswith(".so")
    }


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it, of a clean copy of the checkout."""
    copy = tmp_path_factory.mktemp("build") / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCE)
    command = [sys.executable, "-m", "build", "--no-isolation", copy]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return copy / "dist"


def only(folder: Path, pattern: str) -> Path:
    """The one file of the folder that matches."""
    (path,) = folder.glob(pattern)
    return path


def test_sdist_has_every_file_of_the_package_and_no_links(distributions: Path) -> None:
    with tarfile.open(only(distributions, "*.tar.gz")) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers()}
    files = {name for name, member in members.items() if member.isfile()}
    assert not [name for name, member in members.items() if member.issym()]
    assert package_files() <= files
    assert {"LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "pyproject.toml"} <= files
    assert not [name for name in files if name.startswith(("tests/", "runs/", ".venv/"))]


def test_wheel_has_exactly_the_package(distributions: Path) -> None:
    with zipfile.ZipFile(only(distributions, "*.whl")) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    files = {name for name in sizes if not name.partition("/")[0].endswith(".dist-info")}
    assert files == package_files() | {"fp4lab/kernels/native/libfp4lab.so"}
    assert "fp4lab/kernels/quantize/cpu.c" in files
    assert "fp4lab/py.typed" in files
    for room in ("kernels", "models"):
        assert sizes[f"fp4lab/{room}/__init__.py"] == (ROOT / room / "__init__.py").stat().st_size
    assert f"fp4lab-{fp4lab.__version__}.dist-info/licenses/LICENSE" in sizes


def test_wheel_is_for_a_platform_and_any_python(distributions: Path) -> None:
    name = only(distributions, "*.whl").name
    assert name.startswith(f"fp4lab-{fp4lab.__version__}-py3-none-")
    assert "any" not in name


def test_a_machine_without_a_compiler_gets_a_wheel_that_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_SOURCE)
    platform = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    earlier = copy / "build" / f"lib.{platform}" / "fp4lab" / "kernels" / "native" / "libfp4lab.so"
    earlier.parent.mkdir(parents=True)
    earlier.write_bytes(b"of an earlier build")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", copy]
    lacking = {**os.environ, "CC": "/no/such/compiler"}
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=lacking)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "without its C operators" in result.stdout + result.stderr
    assert not earlier.exists()
    with zipfile.ZipFile(only(copy / "dist", "*-py3-none-any.whl")) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".so")]


def test_wheel_works_without_the_checkout(distributions: Path, tmp_path: Path) -> None:
    """Every module imports from a new environment that sees only the libraries of this one."""
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-index", only(distributions, "*.whl")], check=True)
    site = next(environment.glob("lib/*/site-packages"))
    # A path that a .pth file adds is searched last, and its own .pth files (the editable install of
    # the checkout) are not read.
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    code = (
        "import fp4lab, importlib, pkgutil\n"
        "for module in pkgutil.walk_packages(fp4lab.__path__, 'fp4lab.'):\n"
        "    last = module.name.rpartition('.')[2]\n"
        "    if last not in ('libfp4lab', '__main__') and 'triton' not in module.name:\n"
        "        print(importlib.import_module(module.name).__file__)\n"
        "from fp4lab.kernels.native import library\n"
        "assert library.packaged()[0] is not None, 'the library that was built is not used'\n"
    )
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [python, "-c", code]
    result = subprocess.run(
        command, check=False, cwd=tmp_path, env=clean, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    modules = result.stdout.split()
    assert any(path.endswith("fp4lab/kernels/__init__.py") for path in modules)
    assert all(Path(path).is_relative_to(site) for path in modules)
    assert (environment / "bin" / "fp4lab").exists()
