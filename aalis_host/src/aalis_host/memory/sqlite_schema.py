"""The tables of the SQLite file, and what each is read by."""

from typing import Final

__all__ = ["APPLICATION_ID", "STEPS"]

APPLICATION_ID: Final = 0x41616C73
"""Marks the file as ours ("Aals")."""

# messages.id has the value of messages.number: SQLite can't use the row's number in a range over (timestamp, id).
# shown: 0 a control mark, 1 text, 2 tool traffic.
_VERSION_1: Final = (
    """CREATE TABLE state (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        revision INTEGER NOT NULL,
        pruned INTEGER NOT NULL,
        message_id INTEGER NOT NULL
    )""",
    "INSERT INTO state VALUES (1, 0, 0, 0)",
    """CREATE TABLE messages (
        number INTEGER PRIMARY KEY,
        id INTEGER NOT NULL,
        session_id TEXT NOT NULL,
        timestamp INTEGER NOT NULL,
        shown INTEGER NOT NULL,
        archived INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        platform TEXT,
        user_id TEXT,
        user_name TEXT,
        message_id TEXT,
        tool_calls TEXT,
        tool_call_id TEXT,
        name TEXT,
        metadata TEXT
    )""",
    "CREATE INDEX every ON messages (session_id, timestamp, id, shown, archived) WHERE shown > 0",
    "CREATE INDEX live ON messages (session_id, timestamp, id, shown, archived) WHERE shown > 0 AND archived = 0",
    "CREATE INDEX marks ON messages (session_id) WHERE shown = 0",
    "CREATE UNIQUE INDEX platform_ids ON messages (session_id, message_id) WHERE message_id IS NOT NULL",
    """CREATE TABLE counts (
        session_id TEXT NOT NULL,
        timestamp INTEGER NOT NULL,
        id INTEGER NOT NULL,
        live_texts INTEGER NOT NULL,
        live_tools INTEGER NOT NULL,
        old_texts INTEGER NOT NULL,
        old_tools INTEGER NOT NULL,
        PRIMARY KEY (session_id, timestamp, id)
    ) WITHOUT ROWID""",
    """CREATE TABLE recent (
        session_id TEXT PRIMARY KEY,
        timestamp INTEGER NOT NULL,
        id INTEGER NOT NULL,
        platform TEXT
    ) WITHOUT ROWID""",
    "CREATE INDEX recent_order ON recent (timestamp, id)",
    "CREATE INDEX recent_platform ON recent (platform, timestamp, id)",
    """CREATE TABLE metadata (
        namespace TEXT NOT NULL,
        key TEXT NOT NULL,
        revision INTEGER NOT NULL,
        data TEXT,
        removed_at INTEGER,
        PRIMARY KEY (namespace, key)
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX metadata_revisions ON metadata (revision)",
    "CREATE INDEX metadata_removed ON metadata (removed_at, revision) WHERE removed_at IS NOT NULL",
    """CREATE TABLE generations (
        session_id TEXT PRIMARY KEY,
        generation INTEGER NOT NULL,
        revision INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX generation_revisions ON generations (revision)",
)

STEPS: Final = (_VERSION_1,)
