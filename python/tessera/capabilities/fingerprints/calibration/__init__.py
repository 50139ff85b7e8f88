"""``tessera toploc calibrate``: thresholds from honest responses and known cheats. No server imports it."""
