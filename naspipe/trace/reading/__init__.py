"""What is worked out of finished files: comparisons, differences, numbers."""
