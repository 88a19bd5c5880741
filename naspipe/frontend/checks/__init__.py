"""What a user handed over, checked before anything is written: one clear line if it is wrong."""
