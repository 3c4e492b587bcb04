"""The terminal: the owner's own surface."""

from collections.abc import Callable, Mapping

from attrs import define, field

from aalis_api_session_manager.message import IncomingMessage, OutgoingMessage
from aalis_api_session_manager.model import Identity

__all__ = ["OWNER", "PLATFORM_NAME", "TerminalAdapter"]

PLATFORM_NAME = "cli"
OWNER = Identity(platform=PLATFORM_NAME, user_id="owner")
"""Whoever sits at the terminal."""


@define(eq=False)
class TerminalAdapter:
    """Serves the sessions that are open in this terminal; what is said in them is handed to `show`.

    It declares no windows: its sessions are made with `created_from` before anything is said. Rule: INTAKE-3.
    """

    show: Callable[[str], None]
    platform: str = field(default=PLATFORM_NAME, init=False)
    session_types: Mapping[str, bool] = field(factory=dict, init=False)
    _open: set[str] = field(factory=set, init=False)

    def open(self, session_id: str) -> None:
        """Serve this session from now on."""
        self._open.add(session_id)

    def message(self, session_id: str, text: str) -> IncomingMessage:
        """What the owner typed."""
        return IncomingMessage(
            session_id=session_id,
            platform=PLATFORM_NAME,
            content=text,
            user_id=OWNER.user_id,
            mentioned=True,
        )

    async def claims(self, session_id: str) -> bool:
        """Is it open here."""
        return session_id in self._open

    async def send(self, message: OutgoingMessage) -> None:
        """Show it."""
        self.show(message.content)
