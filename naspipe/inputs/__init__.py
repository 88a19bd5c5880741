"""What users name or hand over, made into what a run needs."""
