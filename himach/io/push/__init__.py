"""Writers by which simulations push frames to servers."""
