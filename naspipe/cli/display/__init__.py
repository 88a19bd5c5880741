"""What a person sees while work goes on."""
