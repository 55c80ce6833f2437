# somebody's home
