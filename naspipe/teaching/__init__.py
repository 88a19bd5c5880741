"""What teachers decide: how one follows its student."""
