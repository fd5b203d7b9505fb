"""Write a page that contains trained models, runs them, and shows every step they compute."""
