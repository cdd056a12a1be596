"""Reads reports of Nsight Systems, exported to SQLite."""
