"""What teachers decide: which of their passes teaches which pass of a student."""
