"""Attention maps, head statistics and spectra of trained models."""
