"""The embedded host of Aalis Sessions."""
