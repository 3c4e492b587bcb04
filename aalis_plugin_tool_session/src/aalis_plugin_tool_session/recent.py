"""What was delegated to a session in the last 60 seconds, and the reminder made of it. Rule: DELEG-6."""

import itertools
from collections import deque
from json.encoder import encode_basestring
from typing import Final

from aalis_plugin_tool_session.dispatches import Delegation
from aalis_plugin_tool_session.texts import REMINDER_FOOT, REMINDER_HEAD, REMINDER_LINE, REMINDER_MORE

__all__ = ["RECENT_MS", "RecentDispatches"]

RECENT_MS: Final = 60_000
_SHOWN: Final = 5


class RecentDispatches:
    """The dispatches of the last 60 seconds, in order of time."""

    def __init__(self) -> None:
        self._all: deque[Delegation] = deque()
        self._to: dict[str, deque[Delegation]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, delegation: Delegation) -> None:
        """It is sent now."""
        self._all.append(delegation)
        self._to.setdefault(delegation.target, deque()).append(delegation)

    def reminder(self, target: str, now: int) -> str:
        """The block to stand ahead of a task; empty when nothing was sent there lately.

        It names sessions by their ids and carries nothing that was said in them.
        """
        self._expire(now)
        earlier = self._to.get(target)
        if not earlier:
            return ""
        lines = [REMINDER_HEAD.format(count=len(earlier))]
        for one in itertools.islice(reversed(earlier), _SHOWN):
            outcome = one.outcome or one.state.replace("_", " ")
            # As a JSON string: whatever an id holds, it stays within its line.
            source = encode_basestring(one.source)
            lines.append(REMINDER_LINE.format(seconds=(now - one.at) // 1000, source=source, outcome=outcome))
        if len(earlier) > _SHOWN:
            lines.append(REMINDER_MORE.format(count=len(earlier) - _SHOWN))
        return "\n".join([*lines, REMINDER_FOOT])

    def _expire(self, now: int) -> None:
        while self._all and self._all[0].at < now - RECENT_MS:
            target = self._all.popleft().target
            self._to[target].popleft()
            if not self._to[target]:
                del self._to[target]
