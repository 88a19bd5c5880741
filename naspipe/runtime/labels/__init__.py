"""Labels: what a frozen teacher makes of a batch, as data; computed here, read, or asked for.

What a stage learns from them is not here (``blocks``), nor who is asked when (``label_scheduler``).
"""
