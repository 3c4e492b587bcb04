"""The tables of the PostgreSQL database, all in the schema `aalis`, and what each is read by.

JSON is kept as text, not jsonb: it comes back as it was written, in its order and with its 64-bit numbers, and a
damaged one can be kept and shown. Texts that are compared have the collation "C": the order of code points, as in
SQLite, whatever the server's locale is.
"""

from typing import Final

__all__ = ["STEPS"]

# shown: 0 a control mark, 1 text, 2 tool traffic.
_VERSION_1: Final = (
    "CREATE SCHEMA IF NOT EXISTS aalis",
    "CREATE TABLE aalis.schema_version (version integer NOT NULL)",
    "INSERT INTO aalis.schema_version VALUES (0)",
    """CREATE TABLE aalis.state (
        revision bigint NOT NULL,
        pruned bigint NOT NULL,
        message_id bigint NOT NULL
    )""",
    "INSERT INTO aalis.state VALUES (0, 0, 0)",
    """CREATE TABLE aalis.writers (
        id text PRIMARY KEY,
        transaction bigint NOT NULL,
        seen_at bigint NOT NULL
    )""",
    """CREATE TABLE aalis.messages (
        id bigint PRIMARY KEY,
        session_id text COLLATE "C" NOT NULL,
        timestamp bigint NOT NULL,
        shown smallint NOT NULL,
        archived smallint NOT NULL,
        generation bigint NOT NULL,
        role text NOT NULL,
        content text NOT NULL,
        platform text,
        user_id text,
        user_name text,
        message_id text COLLATE "C",
        tool_calls text,
        tool_call_id text,
        name text,
        metadata text
    )""",
    """CREATE INDEX messages_every ON aalis.messages (session_id, timestamp, id) INCLUDE (shown, archived)
        WHERE shown > 0""",
    """CREATE INDEX messages_live ON aalis.messages (session_id, timestamp, id) INCLUDE (shown)
        WHERE shown > 0 AND archived = 0""",
    "CREATE INDEX messages_marks ON aalis.messages (session_id) WHERE shown = 0",
    """CREATE UNIQUE INDEX messages_platform_ids ON aalis.messages (session_id, message_id)
        WHERE message_id IS NOT NULL""",
    """CREATE TABLE aalis.counts (
        session_id text COLLATE "C" NOT NULL,
        timestamp bigint NOT NULL,
        id bigint NOT NULL,
        live_texts integer NOT NULL,
        live_tools integer NOT NULL,
        old_texts integer NOT NULL,
        old_tools integer NOT NULL,
        PRIMARY KEY (session_id, timestamp, id)
    )""",
    """CREATE TABLE aalis.recent (
        session_id text COLLATE "C" PRIMARY KEY,
        timestamp bigint NOT NULL,
        id bigint NOT NULL,
        platform text COLLATE "C"
    )""",
    "CREATE INDEX recent_order ON aalis.recent (timestamp, id)",
    "CREATE INDEX recent_platform ON aalis.recent (platform, timestamp, id)",
    """CREATE TABLE aalis.metadata (
        namespace text COLLATE "C" NOT NULL,
        key text COLLATE "C" NOT NULL,
        revision bigint NOT NULL,
        data text,
        removed_at bigint,
        PRIMARY KEY (namespace, key)
    )""",
    "CREATE INDEX metadata_revisions ON aalis.metadata (revision)",
    "CREATE INDEX metadata_removed ON aalis.metadata (removed_at) WHERE removed_at IS NOT NULL",
    """CREATE TABLE aalis.generations (
        session_id text COLLATE "C" PRIMARY KEY,
        generation bigint NOT NULL,
        revision bigint NOT NULL
    )""",
    "CREATE INDEX generation_revisions ON aalis.generations (revision)",
)

STEPS: Final = (_VERSION_1,)
