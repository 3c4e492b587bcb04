"""Taking from another session: the forwarding, and who a one-to-one belongs to."""

import pytest

from aalis_api_session_manager.model import Identity, OriginChat
from aalis_api_session_manager.take import TAKE_UNKNOWN, TakeVerdict, one_to_one_with, take_from
from tests.contract.kit import GROUP, PEER, Selection, Table, is_owner, room, session

SEVEN = Identity(platform="onebot", user_id="7")
OWNER_CHAT = OriginChat(type="private", multi_party=False, target_id="1")


@pytest.mark.rule("TAKE-1")
def test_take_from_asks_the_session_manager() -> None:
    """With a session manager its verdict is passed on as it is, also for one and the same session."""
    table = Table()
    assert not take_from(Selection(table), "a", "b", SEVEN)
    assert not take_from(Selection(table), "a", "a")
    assert table.asked == [("a", "b", SEVEN), ("a", "a", None)]


@pytest.mark.rule("TAKE-1")
def test_take_from_without_a_session_manager() -> None:
    """Only the same id passes (case-exact); everything else is refused as unknown."""
    assert take_from(Selection(), "a", "a") == TakeVerdict(True)
    assert take_from(Selection(), "a", "A", SEVEN) == TakeVerdict(False, TAKE_UNKNOWN)
    assert take_from(Selection(), "a", "b") == TakeVerdict(False, TAKE_UNKNOWN)


@pytest.mark.rule("TAKE-7")
def test_a_verdict_is_as_true_as_its_ok() -> None:
    """A refusal is false and carries a text for people, whose source goes to the model."""
    assert TakeVerdict(True)
    assert not TakeVerdict(False, TAKE_UNKNOWN)
    assert TAKE_UNKNOWN.source.startswith("It can't be told where")


@pytest.mark.rule("ONE-1")
def test_the_peers_own_chat() -> None:
    """The peer's account on the origin platform, where that type is declared one-to-one now."""
    assert one_to_one_with(room(chat=PEER), SEVEN, True)
    assert one_to_one_with(room(chat=PEER), SEVEN, True, is_owner)
    assert not one_to_one_with(room(chat=PEER), SEVEN, False, is_owner)


@pytest.mark.rule("ONE-1")
@pytest.mark.parametrize(
    "principal",
    [
        None,
        Identity(platform="onebot", user_id=""),
        Identity(platform="onebot", user_id="8"),
        Identity(platform="webui", user_id="7"),
        Identity(platform="onebot", user_id="1"),
        Identity(platform="cli", user_id="owner"),
    ],
)
def test_nobody_elses(principal: Identity | None) -> None:
    """No principal, none with an account, another account, the same number elsewhere, nor the owner."""
    assert not one_to_one_with(room(chat=PEER), principal, True, is_owner)


@pytest.mark.rule("ONE-1")
def test_the_owners_chat_is_the_owners_on_every_platform() -> None:
    """Peer and principal are both the owner's identities; without `is_owner` only the same account counts."""
    chat = room(chat=OWNER_CHAT)
    terminal, same = Identity(platform="cli", user_id="owner"), Identity(platform="onebot", user_id="1")
    assert one_to_one_with(chat, terminal, True, is_owner)
    assert one_to_one_with(chat, same, True, is_owner)
    assert not one_to_one_with(chat, terminal, True)
    assert one_to_one_with(chat, same, True)
    assert not one_to_one_with(chat, terminal, False, is_owner)
    assert not one_to_one_with(chat, SEVEN, True, is_owner)


@pytest.mark.rule("ONE-1")
def test_what_is_no_one_to_one() -> None:
    """A group whose number is the principal's account, a room without a window, and no room at all."""
    nine_hundred = Identity(platform="onebot", user_id="900")
    assert not one_to_one_with(room(chat=GROUP), nine_hundred, True, is_owner)
    assert not one_to_one_with(room(chat=None), SEVEN, True, is_owner)
    assert not one_to_one_with(session(created_from="cli"), Identity(platform="cli", user_id="owner"), True, is_owner)
    empty = OriginChat(type="private", multi_party=False, target_id="")
    assert not one_to_one_with(room(chat=empty), Identity(platform="onebot", user_id=""), True, is_owner)
