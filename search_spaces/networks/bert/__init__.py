"""BERT as a space with one candidate per block."""
