"""Labels from teachers that come and go: who is asked for which, and when again."""
