"""The lock that keeps a delegation from delegating on. Rules: DELEG-3, DELEG-4."""

from aalis_api_session_manager.message import TurnEnd, TurnStart

__all__ = ["DepthLock"]


class DepthLock:
    """The sessions whose turn is driven by a message with `proactive_depth`.

    One mark for a session, whatever runs in parallel in it: a later turn overwrites it, and the first that ends
    lifts it for all. Nothing else lifts it, no time either.
    """

    def __init__(self) -> None:
        self._driven: set[str] = set()

    def begin(self, turn: TurnStart) -> None:
        """The message reached the agent."""
        if turn.message.proactive_depth:
            self._driven.add(turn.session_id)
        else:
            self._driven.discard(turn.session_id)

    def end(self, turn: TurnEnd) -> None:
        """A turn of the session ended."""
        self._driven.discard(turn.session_id)

    def holds(self, session_id: str) -> bool:
        """A delegation from this session is refused."""
        return session_id in self._driven

    def __len__(self) -> int:
        return len(self._driven)
