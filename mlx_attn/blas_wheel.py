"""OpenBLAS from a wheel, for a Linux machine that has no system library.

The wheel `scipy-openblas32` is OpenBLAS with a prefix on every symbol. MLX asks for three functions
without it, so three forwarding functions are compiled once, with the C compiler that is at hand,
and kept in the user's cache.
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGE = "scipy_openblas32"

_SOURCE = """
#define FORWARD(NAME, SCALAR) \\
  void scipy_##NAME(int, int, int, int, int, int, SCALAR, const void *, int, const void *, int, \\
                    SCALAR, void *, int); \\
  void NAME(int order, int turn_a, int turn_b, int m, int n, int k, SCALAR alpha, const void *a, \\
            int lda, const void *b, int ldb, SCALAR beta, void *c, int ldc) { \\
    scipy_##NAME(order, turn_a, turn_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); \\
  }
FORWARD(cblas_sgemm, float)
FORWARD(cblas_dgemm, double)
FORWARD(cblas_cgemm, const void *)
"""


def forwarding_library() -> Path | None:
    """A library with the three functions, compiled now if it is not there yet.

    Returns:
        Its path; None where the wheel, a C compiler or a place to keep it is missing.
    """
    openblas, compiler = _wheel_library(), shutil.which("cc") or shutil.which("gcc")
    if openblas is None:
        return None
    target = _cache() / f"forward-{_digest(openblas)}.so"
    if target.exists():
        return target
    try:
        return _compiled(compiler, openblas, target) if compiler else None
    except (OSError, subprocess.SubprocessError):
        return None


def _wheel_library() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    library = Path(found.origin).parent / "lib" / "libscipy_openblas.so"
    return library if library.exists() else None


def _compiled(compiler: str, openblas: Path, target: Path) -> Path:
    """Compile into a temporary file and rename: two processes may do it at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        source, built = Path(folder, "forward.c"), Path(folder, "forward.so")
        source.write_text(_SOURCE)
        flags = ["-O2", "-shared", "-fPIC", f"-Wl,-rpath,{openblas.parent}"]
        command = [compiler, *flags, str(source), str(openblas), "-o", str(built)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        built.replace(target)
    return target


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlx_attn" / "blas"


def _digest(openblas: Path) -> str:
    facts = f"{_SOURCE}{openblas}{openblas.stat().st_size}{openblas.stat().st_mtime_ns}"
    return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()
