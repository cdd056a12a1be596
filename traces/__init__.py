"""What was measured or recorded, in and out: trace formats, recording, calibration."""
