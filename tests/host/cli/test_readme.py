"""The pages about the command and the host: what they show works as it stands."""

import re
import subprocess
import sys
from pathlib import Path

from tests.host.cli.conftest import Run

ROOT = Path(__file__).parents[3]


def test_the_host_as_a_library(run: Run, tmp_path: Path) -> None:
    """The example runs in an empty folder, and the command shows what came of it."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "aalis_host/README.md").read_text("utf-8"), re.M | re.S)
    (tmp_path / "hall.py").write_text(block)
    done = subprocess.run([sys.executable, "hall.py"], capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout.splitlines()[0], done.stderr) == (0, "You wrote: hello", "")
    listed = run("sessions", "list", "--db", "hall.db").stdout.splitlines()[1:]
    assert [line.split()[0] for line in listed] == ["hall"]
    assert run("sessions", "history", "hall", "--db", "hall.db").stdout.count("hello") == 2


def test_the_example_is_left_whole(tmp_path: Path) -> None:
    """The command that writes the example leaves it as it is where the recording is missing."""
    commands = re.findall(r"^    (python bench/.*)$", (ROOT / "examples/README.md").read_text("utf-8"), re.M)
    assert len(commands) == 1
    for name in ("bench", "examples"):
        (tmp_path / "clone" / name).mkdir(parents=True)
    (tmp_path / "clone/bench/traffic.py").write_bytes((ROOT / "bench/traffic.py").read_bytes())
    example = tmp_path / "clone/examples/rooms-day.jsonl"
    example.write_text("as it was")
    done = subprocess.run(
        ["sh", "-c", commands[0]], cwd=tmp_path / "clone", capture_output=True, timeout=50, check=False
    )
    assert done.returncode != 0
    assert example.read_text() == "as it was"
