"""Reads tables of timed operations of pipeline jobs (ByteDance's straggler study)."""
