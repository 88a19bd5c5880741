"""How a layer steps: its optimizer, made and called, alone or with those of other layers."""
