"""The session tools: `session_get_history`, `list_known_sessions`, `delegate_to_session`, and `session-history`."""
