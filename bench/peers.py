"""Environments of their own for what is measured beside Stepstream: what a peer pins must not decide what we run on."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path("var/bench")
UV = Path(sys.executable).with_name("uv")


def python_of(name: str, requirements: list[str]) -> Path:
    """The interpreter of an environment with exactly these requirements; made when it is first asked for."""
    home = FOLDER / name
    wanted = "\n".join(requirements)
    marker = home / "requirements.txt"
    if not marker.exists() or marker.read_text() != wanted:
        print(f"installing {', '.join(requirements)} into {home}", file=sys.stderr)
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, home], check=True)
        python = home / "bin" / "python"
        install: list[str | Path] = [UV, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        subprocess.run([*install, *requirements], check=True)
        marker.write_text(wanted)
    return (home / "bin" / "python").absolute()
