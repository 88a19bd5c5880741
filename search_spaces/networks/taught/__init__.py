"""A network that learns from a teacher, and the teacher: both are for small images."""
