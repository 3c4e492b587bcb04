"""Typing in a terminal, with editing and history."""

from collections.abc import AsyncIterator

from prompt_toolkit import PromptSession
from prompt_toolkit.patch_stdout import patch_stdout

__all__ = ["typed_lines"]


async def typed_lines() -> AsyncIterator[str]:
    """Each line that a person types, until Ctrl-D. What is shown meanwhile stands above the prompt."""
    prompt: PromptSession[str] = PromptSession()
    while True:
        try:
            with patch_stdout():
                typed = await prompt.prompt_async("> ")
        except EOFError:
            return
        yield typed
