"""What users touch from Python."""
