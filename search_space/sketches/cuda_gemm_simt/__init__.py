"""Real float32 on the ordinary cores: no tf32, no tensor cores."""
