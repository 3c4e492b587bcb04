"""A host process that adds to one session; `main` takes the database and the name of the process as arguments."""

import asyncio
import sys

from aalis_api_session_manager.message import LlmUsage, TurnEnd, TurnStart
from aalis_api_session_manager.model import SessionDraft, SessionUpdates
from tests.session_manager.kit import group_message, running

TIMES = 10


async def add(db: str, name: str) -> None:
    """TIMES each: three tokens, a metadata key, a child, a turn that replies."""
    async with running(db) as stack:
        message = group_message("hot")
        for number in range(TIMES):
            turn_id = f"{name}-{number}"
            start = TurnStart(turn_id=turn_id, message=message, session_id="hot", started_at=stack.clock())
            await stack.host.emit("aalis_turn_before", turn=start)
            await stack.host.emit("aalis_llm_usage", usage=LlmUsage(session_id="hot", input_tokens=1, output_tokens=2))
            await stack.sessions.update_session("hot", SessionUpdates(metadata={turn_id: number}))
            await stack.sessions.create_child_session("hot", SessionDraft(name=turn_id))
            end = TurnEnd(
                turn_id=turn_id, message=message, session_id="hot", ended_at=stack.clock(), outcome="replied", reply="x"
            )
            await stack.host.emit("aalis_turn_after", turn=end)


def main() -> None:
    asyncio.run(add(sys.argv[1], sys.argv[2]))
