"""The session manager, a plugin driven by hooks."""
