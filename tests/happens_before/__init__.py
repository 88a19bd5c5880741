"""Whether every access to memory that a GPU shares with the host is ordered; needs no GPU.

The real swapper, device, arena, staging, transport, layer exchange and checkpointer run on a
stand-in for ``torch.cuda``, whose queues do nothing before somebody waits for it. Vector clocks
say what is ordered before what. Blocks and WRITEs are stand-ins, too: kernels that know which
bytes they have to find. Nothing here computes gradients or runs more than one thread.
"""
