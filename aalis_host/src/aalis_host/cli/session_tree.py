"""Sessions below sessions, whatever the stored parents say: some may be missing, some may form a ring."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text

from aalis_api_session_manager.model import SessionInfo
from aalis_host.cli.output import one_line
from aalis_host.cli.session_view import SessionView

__all__ = ["Below", "all_below", "by_parent", "drawn", "nested", "tops_of"]

Below = dict[str | None, list[SessionInfo]]


def by_parent(sessions: Iterable[SessionInfo]) -> Below:
    """Sessions by parent, oldest first."""
    found: Below = {}
    for session in sorted(sessions, key=lambda session: (session.created_at, session.id)):
        found.setdefault(session.parent_id, []).append(session)
    return found


def all_below(top: SessionInfo, below: Below) -> list[SessionInfo]:
    """All levels below a session; in a ring each session once."""
    seen, found = {top.id}, [top]
    for session in found:
        fresh = [child for child in below.get(session.id, ()) if child.id not in seen]
        seen.update(child.id for child in fresh)
        found += fresh
    return found[1:]


def tops_of(sessions: Sequence[SessionInfo]) -> list[SessionInfo]:
    """Roots, sessions whose parent is missing, and one of each ring of parents."""
    ids = {session.id for session in sessions}
    tops = [session for session in sessions if session.parent_id not in ids]
    below = by_parent(sessions)
    reached = {session.id for top in tops for session in (top, *all_below(top, below))}
    for session in sessions:
        if session.id not in reached:
            tops.append(session)
            reached.update(one.id for one in (session, *all_below(session, below)))
    return tops


def nested(view: SessionView, top: SessionInfo, below: Below) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {top.id: {"session": view.as_json(top), "below": []}}
    for session in all_below(top, below):
        made[session.id] = {"session": view.as_json(session), "below": []}
        made[session.parent_id or ""]["below"].append(made[session.id])
    return made[top.id]


def drawn(view: SessionView, tops: Iterable[SessionInfo], below: Below) -> Iterator[Text]:
    """A line for each session, with branches in front of those below another."""
    for top in tops:
        seen = {top.id}
        waiting = [(top, "", "")]
        while waiting:
            session, own, inherited = waiting.pop()
            state = f"{view.given.say(f'kind.{session.kind}')}, {view.given.say(f'status.{session.status}')}"
            yield Text(own + view.label(session)).append(f"  {state}  ").append(one_line(session.id), style="dim")
            children = [child for child in below.get(session.id, ()) if child.id not in seen]
            seen.update(child.id for child in children)
            for child in reversed(children):
                last = child is children[-1]
                waiting.append(
                    (child, inherited + ("└── " if last else "├── "), inherited + ("    " if last else "│   "))
                )
