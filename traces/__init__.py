"""Measurements and recordings, in and out: trace formats, recording, calibration."""
