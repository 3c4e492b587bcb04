"""What a person or a model reads of this plugin."""

from aalis_api_session_manager.text import TextRef, add_texts

__all__ = ["INTERRUPTED", "TAKE_REFUSED"]

TAKE_REFUSED = "session-manager.take-refused"
"""Parameters: `settings` (what would have to change, in words of the configuration), `rules`."""

add_texts(
    {
        TAKE_REFUSED: {
            "en": "This session may not take anything from that one. Settings that would have to change: {settings}.",
            "zh_CN": "本会话不能取那个会话的东西。需要改动的设置:{settings}。",
        },
        "session-manager.interrupted": {
            "en": "The turn was interrupted: the process that ran it ended.",
            "zh_CN": "这一轮被中断:运行它的进程已经结束。",
        },
    }
)

INTERRUPTED = TextRef("session-manager.interrupted")
