"""The event log and what is read off it."""
