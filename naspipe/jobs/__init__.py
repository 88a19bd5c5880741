"""Descriptions of work: workloads, losses, batches, and the protocols that users implement."""
