"""The dashboard: pages rendered here, made live by one script that reads the HTTP API."""

from api.dashboard.pages import install

__all__ = ["install"]
