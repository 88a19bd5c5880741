"""Where teachers are introduced: cards, who keeps them, and who looks at them."""
