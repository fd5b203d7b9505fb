"""Convert a trained model to another form of attention, exactly or with a measured error."""
