"""What a molecule looks like and how it changes: deviations, fluctuations, shape, surface, folds, motions."""
