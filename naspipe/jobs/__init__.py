"""Plain descriptions of work: workloads, losses, batches, and the ports that users implement."""
