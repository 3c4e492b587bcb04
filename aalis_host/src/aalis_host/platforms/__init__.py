"""The ways in and out: the terminal, and OneBot v11."""
