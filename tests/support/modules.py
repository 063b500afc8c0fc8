"""Modules that a test reads beside the one that everybody imports."""

from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def read_again(name: str) -> ModuleType:
    """Run a module again, and return it. Whoever imports it still gets the other one."""
    spec: Any = find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
