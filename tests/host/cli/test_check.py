"""`aalis sessions check`: damaged records are named, and nothing is touched."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.host.cli.conftest import Run, contents, put, record


@pytest.mark.rule("STORE-4")
@pytest.mark.parametrize(
    ("records", "problems"),
    [
        ({"a": '{"id": "a", "na'}, {"a": "isn't readable JSON"}),
        ({"a": "[1]"}, {"a": "isn't readable JSON"}),
        ({"a": record("b")}, {"a": "its id isn't its key"}),
        ({"a": record("a", name=7)}, {"a": "name: "}),
        ({"a": record("a", status="done")}, {"a": "status: "}),
        ({"a": record("a", tokens={"input": "many"})}, {"a": "tokens: "}),
        ({"a": record("a", parentId="gone")}, {"a": "its parent gone doesn't exist"}),
        ({"a": record("a", parentId="b"), "b": record("b", parentId="a")}, {"a": "a ring: a -> b -> a"}),
        ({"a": record("a", parentId="a")}, {"a": "a ring: a -> a"}),
        ({"a": record("a", children=["b", "b"]), "b": record("b", parentId="a")}, {"a": "listed twice"}),
        ({"a": record("a", somethingNew=1, tokens={"input": 1, "output": 2, "cached": 3})}, {}),
    ],
)
def test_each_damage_is_named(run: Run, db: Path, records: dict[str, Any], problems: dict[str, str]) -> None:
    """The session's id and what is wrong with it; the file stays as it is; exit status 1 when something was found."""
    for key, data in records.items():
        put(db, key, data)
    before = contents(db)
    result = run("sessions", "check", "--db", db, "--json")
    found = json.loads(result.stdout)
    assert found["records"] == 4 + len(records)
    assert [problem["id"] for problem in found["problems"]] == list(problems)
    assert all(problems[problem["id"]] in problem["problem"] for problem in found["problems"])
    assert result.exit_code == (1 if problems else 0)
    assert contents(db) == before


def test_words(run: Run, db: Path) -> None:
    """For a person: a table of what is wrong, and a last word."""
    assert run("sessions", "check", "--db", db).stdout == "4 records, nothing wrong\n"
    put(db, "a", "{")
    result = run("sessions", "check", "--db", db)
    assert "it isn't readable JSON" in result.stdout
    assert result.stderr.endswith("5 records, 1 problems\n")
    assert result.exit_code == 1


@pytest.mark.rule("STORE-4")
def test_the_others_are_still_listed(run: Run, db: Path) -> None:
    """A damaged record keeps nobody from looking at the rest, orphans and rings included."""
    put(db, "broken", "{")
    put(db, "orphan", record("orphan", parentId="gone"))
    put(db, "x", record("x", parentId="y"))
    put(db, "y", record("y", parentId="x"))
    ids = {session["id"] for session in json.loads(run("sessions", "list", "--db", db, "--json").stdout)}
    assert {"orphan", "x", "y"} < ids
    assert "broken" not in ids
    tree = run("sessions", "tree", "--db", db).stdout
    assert all(tree.count(f"{session}\n") == 1 for session in ("orphan", "x", "y"))
