"""BERT as a space of one candidate per block."""
