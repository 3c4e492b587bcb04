"""The command as a person has it: a process, in an empty folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Aalis = Callable[..., "subprocess.Popen[str]"]
EXAMPLE = Path(__file__).parents[2] / "examples" / "rooms-day.jsonl"


def environment(folder: Path, **more: str) -> dict[str, str]:
    """No configuration, database or language of the person who runs the tests."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("AALIS_", "LC_", "LANG"))}
    return {**plain, "LC_ALL": "en_US.UTF-8", "HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), **more}


@pytest.fixture
def aalis(tmp_path: Path) -> Aalis:
    """Start a command; its standard streams are pipes."""

    def start(*arguments: object, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", "from aalis_host.cli import main; main()", *map(str, arguments)],
            cwd=tmp_path,
            env=environment(tmp_path, **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def finished(process: "subprocess.Popen[str]", typed: str = "") -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    out, err = process.communicate(typed, timeout=50)
    return process.returncode, out, err
