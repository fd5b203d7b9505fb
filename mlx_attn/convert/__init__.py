"""A trained model in another form of attention: exactly where possible, else with its error."""
