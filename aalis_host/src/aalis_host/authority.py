"""Who is an owner: the accounts that the configuration lists."""

from collections.abc import Iterable

__all__ = ["Authority"]


class Authority:
    """`AuthorityService` on a list of accounts, each `platform:user` (a platform's name has no colon)."""

    def __init__(self, owners: Iterable[str]) -> None:
        self._owners = frozenset(owners)

    def is_owner(self, platform: str, user_id: str) -> bool:
        """Is this account listed."""
        return f"{platform}:{user_id}" in self._owners
