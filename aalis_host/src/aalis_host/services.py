"""Services by typed key."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from aalis_api_session_manager.errors import ServiceNotFound
from aalis_api_session_manager.host import Provided
from aalis_api_session_manager.service import ServiceKey

__all__ = ["Selection", "ServiceRegistry"]

T = TypeVar("T")


class ServiceRegistry:
    """Who provides what. A service may have many providers, in the order of registration.

    Where one is asked for, the provider that was there first serves until it is taken back: what a plugin adds
    later never replaces what others already use.
    """

    def __init__(self) -> None:
        self._provided: dict[str, list[Provided[Any]]] = {}

    def provide(self, key: ServiceKey[T], instance: T, context_id: str) -> Callable[[], None]:
        """Add a provider; the answer takes it back, once."""
        provided = Provided(instance=instance, context_id=context_id)
        self._provided.setdefault(key.name, []).append(provided)
        return lambda: self._remove(key.name, lambda one: one is provided)

    def withdraw(self, context_id: str) -> None:
        """Take back everything that one context provides."""
        for name in list(self._provided):
            self._remove(name, lambda one: one.context_id == context_id)

    def select(self, key: ServiceKey[T]) -> "Selection[T]":
        """The service, looked up at each use."""
        return Selection(self, key)

    def all(self, key: ServiceKey[T]) -> Sequence[Provided[T]]:
        """Every provider, in the order of registration."""
        return tuple(self._provided.get(key.name, ()))

    def has(self, name: str) -> bool:
        """Somebody provides the service of this name now."""
        return name in self._provided

    def _remove(self, name: str, which: Callable[[Provided[Any]], bool]) -> None:
        kept = [one for one in self._provided.get(name, ()) if not which(one)]
        if kept:
            self._provided[name] = kept
        else:
            self._provided.pop(name, None)


@frozen
class Selection(Generic[T]):
    """A `ServiceSelection` on a registry."""

    _registry: ServiceRegistry
    _key: ServiceKey[T]

    @property
    def present(self) -> bool:
        """Somebody provides it now."""
        return self._registry.has(self._key.name)

    def use(self) -> T:
        """The first provider. Raises ServiceNotFound when there is none."""
        for provided in self._registry.all(self._key):
            return provided.instance
        raise ServiceNotFound(self._key.name)
