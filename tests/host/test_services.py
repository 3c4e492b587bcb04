"""Services by typed key: looked up at each use, the first provider serves."""

import pytest

from aalis_api_session_manager.errors import ServiceNotFound
from aalis_api_session_manager.service import ServiceKey
from aalis_host.services import ServiceRegistry

KEY: ServiceKey[str] = ServiceKey("thing")


def test_absent() -> None:
    """A service that nobody provides isn't present; using it names it."""
    selection = ServiceRegistry().select(KEY)
    assert not selection.present
    with pytest.raises(ServiceNotFound, match="'thing'"):
        selection.use()


def test_first_provider_serves_until_it_is_taken_back() -> None:
    """A selection that was made earlier sees who serves now."""
    registry = ServiceRegistry()
    selection = registry.select(KEY)
    take_back = registry.provide(KEY, "one", "a")
    registry.provide(KEY, "two", "b")
    assert selection.use() == "one"
    assert [(one.instance, one.context_id) for one in registry.all(KEY)] == [("one", "a"), ("two", "b")]
    take_back()
    take_back()
    assert selection.use() == "two"


def test_withdraw() -> None:
    """All that one context provides goes at once, and only that; equal instances are told apart."""
    registry = ServiceRegistry()
    other: ServiceKey[str] = ServiceKey("other")
    registry.provide(KEY, "same", "a")
    registry.provide(KEY, "same", "b")
    registry.provide(other, "x", "a")
    registry.withdraw("a")
    assert [one.context_id for one in registry.all(KEY)] == ["b"]
    assert not registry.select(other).present
