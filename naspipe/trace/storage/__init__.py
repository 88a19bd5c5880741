"""Bytes on disk: files that appear whole, framed records, long writes."""
