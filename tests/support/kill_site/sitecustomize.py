"""Make the Python processes below this one kill themselves before a line of a module, once a flag file exists.

Python imports this module at its start if its folder is on PYTHONPATH. `KILL_BEFORE` is `MODULE|TEXT|FLAG`, or with
`|CONDITION` an expression over the names at that place. Before the first line of MODULE that contains TEXT it inserts a
line that sends SIGKILL if FLAG exists and the condition holds. Tracing would make a start of vLLM several times slower.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType

module, text, flag, *conditions = os.environ["KILL_BEFORE"].split("|")
condition = conditions[0] if conditions else "True"


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        lines = (self.get_source(fullname) or "").splitlines()
        [number] = [number for number, line in enumerate(lines) if text in line][:1]
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        lines.insert(
            number, f"{indent}import os; os.path.exists({flag!r}) and ({condition}) and os.kill(os.getpid(), 9)"
        )
        return compile("\n".join(lines), self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder())
