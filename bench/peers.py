"""Install the projects that benches compare with in environments of their own, apart from Stepstream's pins."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path("var/bench")
UV = Path(sys.executable).with_name("uv")


def python_of(name: str, requirements: list[str]) -> Path:
    """Return the interpreter of an environment with exactly these requirements; the first call creates it."""
    environment = FOLDER / name
    wanted = "\n".join(requirements)
    marker = environment / "requirements.txt"
    if not marker.exists() or marker.read_text() != wanted:
        print(f"installing {', '.join(requirements)} into {environment}", file=sys.stderr)
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, environment], check=True)
        python = environment / "bin" / "python"
        install: list[str | Path] = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        subprocess.run([*install, *requirements], check=True)
        marker.write_text(wanted)
    return (environment / "bin" / "python").absolute()
