"""Liquids and what is dissolved in them: structure, diffusion, density, dielectric constant, spectra."""
