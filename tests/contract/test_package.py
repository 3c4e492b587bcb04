"""The package as a whole: what it brings along, and its hooks."""

import ast
import importlib
import importlib.metadata
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pluggy
import pytest

import aalis_api_session_manager
from aalis_api_session_manager import errors, hookspecs
from aalis_api_session_manager.errors import AalisError, InvalidSession, SessionNotFound, StorageError

MODULES = [
    found.name for found in pkgutil.iter_modules(aalis_api_session_manager.__path__, "aalis_api_session_manager.")
]
THIRD_PARTY = {"aalis_api_session_manager", "attr", "attrs", "cattrs", "pluggy", "typing_extensions"}
"""`typing_extensions` comes with cattrs."""

LOADED = f"""
import sys
before = set(sys.modules)
import {", ".join(MODULES)}
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names))
"""
HEAVY = {"asyncio", "concurrent", "ctypes", "http", "multiprocessing", "sqlite3", "socket", "ssl", "xml"}


def python(code: str) -> set[str]:
    """What a fresh interpreter prints, word by word."""
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_it_needs_attrs_cattrs_and_pluggy_alone() -> None:
    """Importing every module loads no other third party, and the metadata names no other."""
    assert python(LOADED) <= THIRD_PARTY
    required = importlib.metadata.requires("aalis-api-session-manager") or []
    assert {name.split(">")[0] for name in required} == {"attrs", "cattrs", "pluggy"}


def test_importing_it_is_cheap() -> None:
    """The types, the pure rules and the hooks load nothing that does I/O; the loop's library comes with nobody."""
    light = [name for name in MODULES if not name.endswith(".wire")]
    code = f"import sys\\nbefore = set(sys.modules)\\nimport {', '.join(light)}\\nprint(*(set(sys.modules) - before))"
    assert not {name.partition(".")[0] for name in python(code.replace("\\n", chr(10)))} & HEAVY


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_declared_and_sorted(name: str) -> None:
    """Each module's `__all__` is what it defines for others, and everything in it has a docstring."""
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(vars(module))
    for public in module.__all__:
        value = getattr(module, public)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{public}"


HOOKS = {
    "aalis_activate": ["host"],
    "aalis_deactivate": [],
    "aalis_register_tools": ["registry"],
    "aalis_inbound": ["message"],
    "aalis_inbound_gate": ["message"],
    "aalis_turn_before": ["turn"],
    "aalis_turn_after": ["turn"],
    "aalis_llm_usage": ["usage"],
    "aalis_memory_clear": ["request"],
    "aalis_memory_cleared": ["request", "rows"],
    "aalis_session_created": ["session"],
    "aalis_session_updated": ["session"],
    "aalis_session_completed": ["session"],
    "aalis_session_deleted": ["session_id"],
}


@pytest.mark.rule("EVENT-1")
def test_the_hooks_and_what_they_carry() -> None:
    """Every hook of the design is specified with these arguments; events carry the session, a deletion its id."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    specified = {name: caller.spec for name, caller in vars(manager.hook).items() if not name.startswith("_")}
    assert {name: list(spec.argnames) for name, spec in specified.items()} == HOOKS


def test_a_misspelt_hook_is_found() -> None:
    """An implementation of a hook that doesn't exist is an error when the host checks."""

    class Plugin:
        @hookspecs.hookimpl
        def aalis_inbond(self, message: object) -> None: ...

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(Plugin())
    with pytest.raises(pluggy.PluginValidationError, match="aalis_inbond"):
        manager.check_pending()


def test_errors_carry_data() -> None:
    """Every error is an AalisError, says what it is about in its text, and holds it as data."""
    assert all(issubclass(getattr(errors, name), AalisError) for name in errors.__all__)
    missing = SessionNotFound("s 1")
    assert (missing.session_id, str(missing)) == ("s 1", "no session 's 1'")
    invalid = InvalidSession(None, "a creation beside a parent")
    assert (invalid.session_id, str(invalid)) == (None, "a creation beside a parent")
    storage = StorageError("disk full", session_id="s", pending=True)
    assert (storage.session_id, storage.pending, str(storage)) == ("s", True, "disk full")


def test_no_module_does_io() -> None:
    """No module opens a file, a socket or a database, starts a thread, or reads the clock."""
    forbidden = {"asyncio", "io", "os", "pathlib", "random", "socket", "sqlite3", "subprocess", "threading", "time"}
    for source in Path(aalis_api_session_manager.__path__[0]).glob("*.py"):
        tree = ast.parse(source.read_text("utf-8"))
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {(node.module or "").partition(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not imported & forbidden, source.name
