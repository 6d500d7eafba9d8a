"""The commands that need the service, given to the command line by entry points."""
