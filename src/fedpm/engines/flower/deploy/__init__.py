"""A fleet on Flower: the apps that SuperLink and SuperNodes run, the folder that names them, keys and commands."""
