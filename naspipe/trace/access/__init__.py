"""The access log and what it says: who read and wrote which layer."""
