"""What `import fp4lab` loads, and by which names the packages of the checkout can be imported."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = sorted(
    path.stem
    for path in (ROOT / "fp4lab").iterdir()
    if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
)
HEAVY = ("scipy", "matplotlib", "safetensors", "tyro", "rich", "jinja2")


def run_python(code: str, *, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python code in its own process, with PYTHONPATH set to `path`."""
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, check=False, cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_import_loads_no_library_beyond_torch_and_numpy_and_has_the_top_level_folders() -> None:
    code = (
        "import sys, fp4lab; assert 'torch' not in sys.modules; fp4lab.convert\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
        "import fp4lab.kernels, fp4lab.models\n"
        "print(fp4lab.kernels.__file__, fp4lab.models.__file__)"
    )
    result = run_python(code, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    loaded, files = result.stdout.splitlines()
    assert loaded == "[]"
    folders = [Path(file).resolve().parent for file in files.split()]
    assert folders == [ROOT / "kernels", ROOT / "models"]


@pytest.mark.parametrize(
    "code",
    [
        *(f"import fp4lab.{room}" for room in ROOMS),
        *(f"import fp4lab; print(fp4lab.{room}.__name__)" for room in ROOMS),
        "from fp4lab import *; print(convert, compare, formats.NVFP4, InputError)",
        "import fp4lab; print(dir(fp4lab).index('quantize'), fp4lab.compare)",
    ],
)
@pytest.mark.slow
def test_every_room_can_be_the_first(code: str) -> None:
    """In whatever order rooms import each other, and names are looked up in the package."""
    result = run_python(code, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_names_of_the_package() -> None:
    import fp4lab
    from fp4lab import face

    assert {*fp4lab.__all__} == {*face.__all__, "compare"}
    assert all(getattr(fp4lab, name) is getattr(face, name) for name in face.__all__)
    assert fp4lab.functional.error is fp4lab.error
    for name in ("quantise", "_private", "NVFP4"):
        with pytest.raises(AttributeError, match=f"module 'fp4lab' has no attribute '{name}'"):
            getattr(fp4lab, name)
    with pytest.raises(ImportError, match="cannot import name 'quantise' from 'fp4lab'"):
        exec("from fp4lab import quantise")


@pytest.mark.parametrize(
    ("folder", "code"), [("kernels", "from kernels import ops"), ("models", "import models")]
)
def test_top_level_folder_is_refused_under_its_bare_name(folder: str, code: str) -> None:
    result = run_python(code, cwd=ROOT)
    assert result.returncode != 0
    expected = f"ImportError: '{folder}' is the package fp4lab.{folder}; import it by that name"
    assert result.stderr.splitlines()[-1] == expected


def test_another_package_named_kernels_is_found_to_be_missing_in_a_checkout() -> None:
    """As transformers asks for it."""
    code = (
        "import kernels; assert kernels.__file__ is None and not hasattr(kernels, '__version__')\n"
        "import kernels.quantize"
    )
    result = run_python(code, cwd=ROOT)
    assert result.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: No module named 'kernels.quantize'"
    )


def test_editable_install_is_this_checkout(tmp_path: Path) -> None:
    try:
        importlib.metadata.distribution("fp4lab")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("fp4lab is not installed here, only on the path; make test installs it")
    code = "import fp4lab.kernels, fp4lab.models; print(fp4lab.__file__)"
    result = run_python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).resolve() == ROOT / "fp4lab" / "__init__.py"
