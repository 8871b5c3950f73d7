"""Package: types, stubs, documentation, size, time to import, and platforms that are none of its own."""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import farleaf
import farleaf.aio

ROOT = Path(__file__).resolve().parents[2]
TESTS = Path(__file__).resolve().parent


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)


def check(*command: object) -> None:
    done = run(*command, cwd=TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict_accepts_the_package_and_its_use() -> None:
    check(sys.executable, "-m", "mypy", "--strict", "--config-file=", "-p", "farleaf")
    check(sys.executable, "-m", "mypy", "--strict", "--config-file=", TESTS / "typed.py")


def test_pyright_accepts_the_package_and_its_use(tmp_path: Path) -> None:
    # The installed package, under its own name.
    shutil.copytree(Path(farleaf.__file__).parent, tmp_path / "farleaf", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(TESTS / "typed.py", tmp_path)
    done = run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_is_that_of_the_module() -> None:
    check(sys.executable, "-m", "mypy.stubtest", "farleaf")


def test_types_refuse_a_str_key(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import farleaf\ndb = farleaf.open('mem:')\ndb.table('t')['ada']\ndb.table('t', engin='dex')\n")
    done = run(sys.executable, "-m", "mypy", "--strict", "--config-file=", wrong)
    assert done.returncode == 1 and "wrong.py:3" in done.stdout and "wrong.py:4" in done.stdout, done.stdout


@pytest.mark.parametrize("module", [farleaf, farleaf.aio])
def test_examples_of_docstrings_run(module) -> None:
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0 and outcome.failed == 0


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/python.md"])
def test_examples_of_pages_run(page: str, tmp_path: Path, memory_server, shm: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    assert blocks, "the page has examples"
    with farleaf.open(memory_server.address, create=True):
        pass
    for block in blocks:
        # A memory server of this machine stands for those of other machines.
        text = re.sub(r'"(tcp|etcd)://[^"]*"', f'"{memory_server.address}"', block)
        text = text.replace("shm:/dev/shm/demo", shm)
        done = run(sys.executable, "-W", "error", "-c", text, cwd=tmp_path)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def test_the_example_program_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "python" / "inverted_index.py"
    (tmp_path / "a.md").write_text("leaf far leaf")
    (tmp_path / "b.md").write_text("far away")
    done = run(sys.executable, example, "mem:", tmp_path, "far", "leaf")
    assert done.returncode == 0, done.stderr
    assert "a.md" in done.stdout and "b.md" not in done.stdout.split("all of far leaf:")[-1], done.stdout
    assert run(sys.executable, example, "mem:", tmp_path / "none", "far").returncode == 2


def wheel() -> Path:
    found = os.environ.get("FARLEAF_WHEEL")
    if not found:
        pytest.fail("no wheel: set FARLEAF_WHEEL to it (make python does)")
    return Path(found)


def test_the_wheel_is_small_and_holds_what_it_must() -> None:
    assert wheel().stat().st_size <= 12 << 20
    assert "-cp310-abi3-" in wheel().name and "linux" in wheel().name
    with zipfile.ZipFile(wheel()) as archive:
        names = {name for name in archive.namelist() if not name.endswith(".so")}
        assert {f"farleaf/{name}" for name in ["__init__.py", "aio.py", "errors.py", "options.py", "_native.pyi", "py.typed"]} <= names
        assert not any("tests" in name for name in names)


def test_the_import_takes_less_than_50_ms() -> None:
    program = "import time; t = time.perf_counter(); import farleaf; print(time.perf_counter() - t)"
    seconds = min(float(run(sys.executable, "-c", program).stdout) for _ in range(5))
    assert seconds < 0.05


def test_pip_refuses_the_wheel_of_another_platform(tmp_path: Path) -> None:
    other = tmp_path / re.sub(r"-[^-]*linux.*\.whl$", "-macosx_11_0_arm64.whl", wheel().name)
    shutil.copy(wheel(), other)
    done = run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", tmp_path / "in", other)
    assert done.returncode != 0 and "is not a supported wheel on this platform" in done.stderr


def test_a_module_of_another_platform_says_which_there_are(tmp_path: Path) -> None:
    """A wheel that is unpacked by hand may hold a module that cannot be loaded."""
    shutil.copytree(Path(farleaf.__file__).parent, tmp_path / "farleaf")
    for module in (tmp_path / "farleaf").glob("_native*.so"):
        module.write_bytes(b"not of this platform")
    done = run(sys.executable, "-c", "import farleaf", cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "Its wheels are for CPython 3.10 and later on 64-bit Linux; this is cpython" in done.stderr


@pytest.mark.parametrize(("system", "refused"), [("windows", True), ("macos", True), ("linux", False)])
def test_the_build_refuses_other_platforms(tmp_path: Path, system: str, refused: bool) -> None:
    script = tmp_path / "build"
    done = run("rustc", "--edition", "2024", "-o", script, ROOT / "python" / "build.rs")
    assert done.returncode == 0, done.stderr
    target = {"CARGO_CFG_TARGET_OS": system, "CARGO_CFG_TARGET_POINTER_WIDTH": "64", "CARGO_CFG_TARGET_ENDIAN": "little"}
    done = run(script, env={**os.environ, **target})
    assert (done.returncode != 0) == refused
    assert (f"not on {system}" in done.stdout) == refused
