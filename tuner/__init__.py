"""Decides what to try next. Pure but for the ports it is handed: no clock, no file, no environment variable."""
