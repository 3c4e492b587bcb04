"""A pytest plugin that says which rule is proven: `python -m pytest -p tests.rules`.

It reads the numbers from the page of rules beside the clone and counts, for each, the tests that name it in
`@pytest.mark.rule(...)` and passed. A number that the page doesn't have fails the run.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "shared" / "spec" / "rules.md"
PASSED: pytest.StashKey[set[str]] = pytest.StashKey()
NAMED: pytest.StashKey[dict[str, tuple[str, ...]]] = pytest.StashKey()


def rules_of(page: str) -> list[str]:
    """The numbers of the page, in its order: `- KIND-1 …` gives `KIND-1`."""
    return re.findall(r"^- ([A-Z]+-\d+)", page, re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    if not PAGE.is_file():
        raise pytest.UsageError(f"the page of rules isn't there: {PAGE}")
    config.stash[PASSED] = set()
    config.stash[NAMED] = {}


def pytest_collection_finish(session: pytest.Session) -> None:
    known = set(rules_of(PAGE.read_text("utf-8")))
    for item in session.items:
        numbers = tuple(number for mark in item.iter_markers("rule") for number in mark.args)
        session.config.stash[NAMED][item.nodeid] = numbers
        if unknown := set(numbers) - known:
            raise pytest.UsageError(f"{item.nodeid} names rules that the page doesn't have: {sorted(unknown)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[Any]:
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[PASSED].add(item.nodeid)
    elif report.failed:
        item.config.stash[PASSED].discard(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    passed, named = config.stash[PASSED], config.stash[NAMED]
    proofs = Counter(number for node in passed for number in set(named[node]))
    rules = rules_of(PAGE.read_text("utf-8"))
    terminalreporter.section("rules, and how many passing tests prove each")
    areas: dict[str, list[str]] = {}
    for rule in rules:
        areas.setdefault(rule.split("-")[0], []).append(f"{rule} {proofs[rule]}")
    for lines in areas.values():
        terminalreporter.write_line("  ".join(lines))
    without = [rule for rule in rules if not proofs[rule]]
    terminalreporter.write_line(f"{len(rules) - len(without)} of {len(rules)} rules are proven")
    terminalreporter.write_line(f"without a passing test: {', '.join(without) or 'none'}")
