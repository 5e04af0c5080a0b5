"""What happens around the training steps: measuring, logging, saving, stopping."""
