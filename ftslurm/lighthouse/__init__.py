"""The Lighthouse decides which groups take the next step of training together."""
