"""What runs inside the Lighthouse's step."""
