"""What the pages say is true: their examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "aalis_api_session_manager/README.md", "aalis_host/README.md")
AALIS = Path(sys.executable).with_name("aalis")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page of this project."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def aalis(*arguments: str, folder: Path, path: Path | None = None) -> str:
    """What the command prints, run in a folder with another on the module path."""
    environment = {**os.environ, "AALIS_CONFIG": "", **({} if path is None else {"PYTHONPATH": str(path)})}
    run = subprocess.run([AALIS, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page: str) -> None:
    """Each Python block of a page is a program of its own and ends without an error."""
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), {"__name__": "example"})


def test_the_example_plugin_is_found_and_its_tool_answers(tmp_path: Path) -> None:
    """The README's plugin, installed as its two blocks say, is listed, and its tool counts the sessions."""
    (plugin,) = blocks("README.md", "python")
    assert len([line for line in plugin.splitlines() if line.strip()]) <= 20
    entry_point = re.search(r"^count = \"(.+)\"$", "".join(blocks("README.md", "toml")), re.MULTILINE)
    assert entry_point is not None
    site, work = tmp_path / "site", tmp_path / "work"
    info = site / "aalis_plugin_count-0.1.dist-info"
    info.mkdir(parents=True)
    work.mkdir()
    (site / "count_sessions.py").write_text(plugin)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aalis-plugin-count\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[aalis.plugins]\ncount = {entry_point[1]}\n")

    made = json.loads(aalis("sessions", "create", "--db", "x.db", "--json", folder=work))
    assert "aalis-plugin-count" in aalis("plugins", folder=work, path=site)
    call = ("tools", "call", "count_sessions", "{}", "--session", made["id"], "--db", "x.db")
    called = aalis(*call, folder=work, path=site)
    assert json.loads(called) == {"sessions": 1}


def test_the_example_configuration_is_right(tmp_path: Path) -> None:
    """The README's `aalis.toml` passes the check."""
    (tmp_path / "aalis.toml").write_text(blocks("README.md", "toml")[0])
    aalis("config", "check", folder=tmp_path)


def test_every_file_that_the_readme_names_is_there() -> None:
    """The table of areas names modules that exist."""
    page = (ROOT / "README.md").read_text("utf-8")
    folders = {
        "api": "aalis_api_session_manager",
        "sm": "aalis_plugin_session_manager",
        "tool": "aalis_plugin_tool_session",
        "host": "aalis_host",
    }
    named = re.findall(r"`(api|sm|tool|host)/([\w/.]+)`", page)
    assert len(named) > 20
    for short, name in named:
        assert (ROOT / folders[short] / "src" / folders[short] / name).exists(), f"{short}/{name}"
    for link in re.findall(r"\]\(([\w/.]+)\)", page):
        assert (ROOT / link).exists(), link
