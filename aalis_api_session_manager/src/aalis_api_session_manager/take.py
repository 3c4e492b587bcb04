"""May one session take another's things (history, media)? The pure parts of the one rule.

The rule itself is `SessionManagerService.can_take`; consumers call `take_from`.
"""

from aalis_api_session_manager.kinds import IsOwner
from aalis_api_session_manager.model import Identity, SessionInfo
from aalis_api_session_manager.service import TAKE_UNKNOWN, ServiceSelection, SessionManagerService, TakeVerdict

__all__ = ["TAKE_UNKNOWN", "TakeVerdict", "one_to_one_with", "take_from"]


def take_from(
    sessions: ServiceSelection[SessionManagerService],
    current_id: str,
    target_id: str,
    principal: Identity | None = None,
) -> TakeVerdict:
    """`can_take` of the session manager; without one only the same session id passes. Rule: TAKE-1."""
    if sessions.present:
        return sessions.use().can_take(current_id, target_id, principal)
    return TakeVerdict(True) if current_id == target_id else TakeVerdict(False, TAKE_UNKNOWN)


def one_to_one_with(
    room: SessionInfo, principal: Identity | None, declared: bool, is_owner: IsOwner | None = None
) -> bool:
    """Is this root an IM one-to-one of the principal's own? Rule: ONE-1.

    `declared`: the origin platform's adapter declares the window's type one-to-one, now. Without `is_owner`
    only the same account counts.
    """
    chat, platform = room.origin_chat, room.origin_platform
    if not declared or chat is None or chat.multi_party or platform is None:
        return False
    if principal is None or not principal.user_id:
        return False
    if principal.platform == platform and principal.user_id == chat.target_id:
        return True
    return (
        is_owner is not None and is_owner(platform, chat.target_id) and is_owner(principal.platform, principal.user_id)
    )
