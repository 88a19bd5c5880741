"""Networks that learn from a teacher, and one to teach them: small ones for small images."""
