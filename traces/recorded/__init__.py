"""Reads files of the recorder: pipelines that ran as processes of torch."""
