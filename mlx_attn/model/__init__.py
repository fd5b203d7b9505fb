"""The GPT around the attention: configuration, presets, blocks, initialisation."""
