"""What a user names or hands over, made into what a run needs."""
