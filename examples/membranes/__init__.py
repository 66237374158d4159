"""Membranes: order of lipid tails, area, thickness, leaflets."""
