"""The contract of Aalis sessions: types, hookspecs, pure rules and texts. No I/O, no state."""
