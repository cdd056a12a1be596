"""Reports of Nsight Systems, exported to SQLite."""
