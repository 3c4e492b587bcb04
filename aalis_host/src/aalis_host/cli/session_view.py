"""Sessions, as a person and as another program are shown them."""

from collections.abc import Sequence
from typing import Any

import orjson
from attrs import frozen

from aalis_api_session_manager.kinds import is_unfiled, root_session_of
from aalis_api_session_manager.model import SessionInfo, SessionPlace
from aalis_api_session_manager.service import SessionManagerService
from aalis_api_session_manager.text import TextRef, place_label, session_label
from aalis_api_session_manager.values import thaw_json
from aalis_api_session_manager.wire import to_json
from aalis_host.cli.base import Given
from aalis_host.cli.output import age, block, compact, on_terminal, one_line
from aalis_host.cli.tables import show_captioned, show_facts, show_table

__all__ = ["SessionView"]


@frozen
class SessionView:
    """Shows sessions of one service, at one moment."""

    given: Given
    sessions: SessionManagerService
    now: int

    def label(self, session: SessionInfo) -> str:
        """Its title, else its name, else the default. Rule: LABEL-3."""
        return one_line(session.title or self.given.render(session_label(session)))

    def platform(self, session: SessionInfo) -> str | None:
        """Where its root was born: an IM platform, or the owner's surface that made it."""
        root = root_session_of(session.id, self.sessions.get_session)
        return None if root is None else root.origin_platform or root.created_from

    def place(self, session: SessionInfo) -> SessionPlace | None:
        """Its place; None where its root is unfiled or can't be told. Rule: CREATE-9."""
        root = root_session_of(session.id, self.sessions.get_session)
        return None if root is None or is_unfiled(root) else self.sessions.place_of(session.id)

    def as_json(self, session: SessionInfo) -> dict[str, Any]:
        """The session with `label` and `place`."""
        shown = session.title or session_label(session)
        place = self.place(session)
        return {
            **to_json(session),
            "label": shown.source if isinstance(shown, TextRef) else shown,
            **({} if place is None else {"place": to_json(place)}),
        }

    def show(self, sessions: Sequence[SessionInfo]) -> None:
        """A row for each; on a terminal its id stands below."""
        names = ("label", "kind", "place", "status", "last-turn", "tokens", "age")
        heads = [self.given.say(f"head.{name}") for name in names]
        rows, ids = [self._cells(session) for session in sessions], [one_line(session.id) for session in sessions]
        if on_terminal():
            show_captioned(heads, rows, ids, right=(5, 6), flexible=(0, 2))
        else:
            lines = [[session_id, *cells] for session_id, cells in zip(ids, rows, strict=True)]
            show_table([self.given.say("head.session"), *heads], lines, right=(6, 7))

    def _cells(self, session: SessionInfo) -> list[str]:
        return [
            self.label(session),
            self.given.say(f"kind.{session.kind}"),
            self._place_label(session),
            self.given.say(f"status.{session.status}"),
            self._last_turn(session),
            compact(session.tokens.input + session.tokens.output) if session.tokens else "",
            age(self.now - session.created_at),
        ]

    def show_facts(self, session: SessionInfo) -> None:
        """Everything that is known of one."""
        say, chat, turn = self.given.say, session.origin_chat, session.last_turn
        audience = "" if chat is None else say("audience.many" if chat.multi_party else "audience.one")
        rows = [
            (say("head.session"), session.id),
            (say("head.name"), session.name),
            (say("label.title"), session.title),
            (say("head.kind"), say(f"kind.{session.kind}")),
            (say("head.place"), self._place_label(session)),
            (say("head.status"), say(f"status.{session.status}")),
            (say("label.parent"), session.parent_id),
            (say("label.children"), "\n".join(session.children)),
            (
                say("label.window"),
                chat
                and say(
                    "window", type=f"{session.origin_platform} {chat.type}", target=chat.target_id, audience=audience
                ),
            ),
            (say("label.instance"), session.origin_instance),
            (say("label.from"), session.created_from),
            (say("label.directory"), session.current_dir or (session.work and session.work.root)),
            (say("label.created"), say("when", at=session.created_at)),
            (say("label.updated"), say("when", at=session.updated_at)),
            (say("label.last-reply"), session.last_reply_at and say("when", at=session.last_reply_at)),
            (say("head.last-turn"), self._last_turn(session)),
            (say("outcome.error"), turn and turn.error and self.given.render(turn.error)),
            (
                say("head.tokens"),
                session.tokens and say("tokens", input=session.tokens.input, output=session.tokens.output),
            ),
            (say("label.input"), session.input_context),
            (say("label.result"), session.result),
            (say("label.metadata"), session.metadata and orjson.dumps(thaw_json(session.metadata)).decode()),
        ]
        show_facts([(name, block(value)) for name, value in rows if value])

    def _place_label(self, session: SessionInfo) -> str:
        place = self.place(session)
        if place is None:
            return ""
        record = self.sessions.get_place(place.key)
        return one_line(place.key if record is None else self.given.render(place_label(record)))

    def _last_turn(self, session: SessionInfo) -> str:
        turn = session.last_turn
        return "" if turn is None else f"{self.given.say(f'outcome.{turn.outcome}')} {age(self.now - turn.ended_at)}"
