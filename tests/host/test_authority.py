"""Owners are the accounts that the configuration lists."""

from aalis_host.authority import Authority
from aalis_host.config import Settings


def test_the_terminal_is_an_owner_by_default() -> None:
    """`cli:owner`, and nobody else."""
    authority = Authority(Settings().authority.owners)
    assert authority.is_owner("cli", "owner")
    assert not authority.is_owner("onebot", "owner")
    assert not authority.is_owner("cli", "")


def test_listed_accounts() -> None:
    """Exactly the listed ones; a user's id may hold a colon."""
    authority = Authority(["onebot:10001", "matrix:@me:example.org"])
    assert authority.is_owner("onebot", "10001")
    assert authority.is_owner("matrix", "@me:example.org")
    assert not authority.is_owner("onebot", "1000")
    assert not authority.is_owner("cli", "owner")
